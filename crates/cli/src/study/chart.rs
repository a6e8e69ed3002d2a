//! Plots as SVG: panels with lines, marks, bars, rectangles and labels, one below the other.
//!
//! Owns: the colours and sizes. The background is drawn too, so that a plot looks the same on light and dark pages.

use super::axis::Axis;
use super::labels::{Labels, Pixel, spread};
use crate::outside::printable;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, DashedPathElement, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::SVGBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBAColor, RGBColor, TextStyle};
use std::collections::HashSet;
use std::ops::Range;

/// The error of drawing a plot.
pub(crate) type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// The background and the text, as in the pictures of tables.
const BACKGROUND: RGBColor = RGBColor(0x0d, 0x11, 0x17);
const TEXT: RGBColor = RGBColor(0xd0, 0xd7, 0xde);
const QUIET: RGBColor = RGBColor(0x9a, 0xa4, 0xae);
const GRID: RGBColor = RGBColor(0x26, 0x2d, 0x36);
/// The colours of lines, which also differ in brightness.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x58, 0xa6, 0xff),
    RGBColor(0xf0, 0x88, 0x3e),
    RGBColor(0x56, 0xd3, 0x64),
    RGBColor(0xd2, 0xa8, 0xff),
    RGBColor(0xe3, 0xb3, 0x41),
    RGBColor(0xff, 0x7b, 0x72),
    RGBColor(0x39, 0xc5, 0xcf),
    RGBColor(0xf7, 0x78, 0xba),
];

// The sizes are in pixels.
const WIDTH: u32 = 1000;
const HEAD: u32 = 66;
const PANEL: u32 = 500;
/// The height of a panel above and below its axes, with some reserve, in pixels.
const AROUND: u32 = 120;
const MARGIN: i32 = 14;
const NAMES: i32 = 150;
const DOT: i32 = 4;
const DIAMOND: i32 = 7;
/// The least width and height of a rectangle that is drawn with an edge, in pixels.
const EDGED: i32 = 3;
/// Font sizes, which are also line heights.
const HEADING: i32 = 21;
const TITLE: i32 = 18;
const PLAIN: i32 = 16;
const SMALL: i32 = 14;
/// The line height of a name at the right edge.
const NAME: i32 = SMALL + 2;
/// The width of a digit, as a part of the drawn font size.
const DIGIT: f64 = 0.5;
/// The most characters of a name at the right edge.
const MOST_OF_A_NAME: usize = 18;

/// Returns the colour of the line with this index.
pub(crate) const fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    None,
    Dot,
    Diamond,
}

/// A point, in values of the axes.
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) label: Option<String>,
    pub(crate) mark: Mark,
}

/// Points with a line through them.
pub(crate) struct Line {
    /// The name at the right edge; no name if empty.
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    pub(crate) dashed: bool,
    pub(crate) points: Vec<Point>,
    /// Further points of the same colour, through which no line is drawn.
    pub(crate) apart: Vec<Point>,
}

/// A bar from 0 on, in values of the axes.
pub(crate) struct Bar {
    pub(crate) x: Range<f64>,
    pub(crate) height: f64,
    pub(crate) label: String,
    pub(crate) colour: RGBAColor,
}

/// A rectangle, in values of the axes.
pub(crate) struct Tile {
    pub(crate) x: Range<f64>,
    pub(crate) y: Range<f64>,
    pub(crate) colour: RGBColor,
}

/// A system of axes and its contents.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
    pub(crate) bars: Vec<Bar>,
    pub(crate) tiles: Vec<Tile>,
}

impl Panel {
    /// Returns the height in pixels. The height is larger if many lines have names.
    fn height(&self) -> u32 {
        PANEL.max(AROUND + NAME as u32 * self.lines.iter().filter(|line| !line.name.is_empty()).count() as u32)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the picture of some panels.
///
/// # Errors
/// The errors of the drawing library.
pub(crate) fn draw(heading: &str, legend: &str, panels: &[Panel]) -> Result<String, DrawError> {
    let mut svg = String::new();
    let height = HEAD + panels.iter().map(Panel::height).sum::<u32>();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    root.fill(&BACKGROUND)?;
    root.draw(&Text::new(printable(heading).into_owned(), (MARGIN, MARGIN), style(HEADING, TEXT)))?;
    root.draw(&Text::new(printable(legend).into_owned(), (MARGIN, MARGIN + HEADING + 5), style(SMALL, QUIET)))?;
    let (_, mut below) = root.split_vertically(HEAD);
    for panel in panels {
        let (area, rest) = below.split_vertically(panel.height());
        draw_panel(&root, &area, panel)?;
        below = rest;
    }
    root.present()?;
    drop(below);
    drop(root);
    Ok(svg)
}

fn style(size: i32, colour: RGBColor) -> TextStyle<'static> {
    TextStyle { color: colour.to_backend_color(), ..("sans-serif", size).into_font().into() }
}

fn draw_panel(root: &Area<'_>, area: &Area<'_>, panel: &Panel) -> Result<(), DrawError> {
    let (left, top) = area.get_base_pixel();
    root.draw(&Text::new(printable(&panel.title).into_owned(), (left + MARGIN, top + MARGIN), style(TITLE, TEXT)))?;
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        .margin_top(MARGIN + TITLE + 8)
        .margin_right(NAMES)
        .x_label_area_size(50)
        .y_label_area_size(74)
        .build_cartesian_2d(panel.x.clone(), panel.y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .max_light_lines(0)
        .axis_style(QUIET)
        .label_style(style(SMALL, QUIET))
        .axis_desc_style(style(PLAIN, TEXT))
        .x_labels(panel.x.names())
        .y_labels(panel.y.names())
        .x_desc(&panel.x.name)
        .y_desc(&panel.y.name)
        .draw()?;
    let within = chart.plotting_area().get_pixel_range();
    let inside = Inside { root, labels: Labels::new(within.clone()), within };
    inside.draw(panel, |x, y| chart.backend_coord(&(x, y)))
}

/// The inside of a panel's axes. Everything is drawn in pixels, so that overlaps can be found.
struct Inside<'a, 'b> {
    root: &'a Area<'b>,
    within: (Range<i32>, Range<i32>),
    labels: Labels,
}

impl Inside<'_, '_> {
    fn draw(mut self, panel: &Panel, at: impl Fn(f64, f64) -> Pixel) -> Result<(), DrawError> {
        self.tiles(&panel.tiles, &at)?;
        for bar in &panel.bars {
            let (from, to) = (at(bar.x.start, bar.height), at(bar.x.end, 0.0));
            self.root.draw(&Rectangle::new([from, to], bar.colour.filled()))?;
            self.text(&bar.label, ((from.0 + to.0) / 2, from.1 - SMALL / 2), TEXT, HPos::Center)?;
        }
        let pixels = |points: &[Point]| points.iter().map(|point| at(point.x, point.y)).collect::<Vec<_>>();
        for line in &panel.lines {
            let places = pixels(&line.points);
            places.windows(2).for_each(|pair| self.labels.add_line(pair[0], pair[1]));
            let points = line.points.iter().zip(&places);
            points.for_each(|(point, place)| self.labels.add_mark(*place, point.mark.radius()));
            line.apart.iter().zip(pixels(&line.apart)).for_each(|(point, place)| {
                self.labels.add_mark(place, point.mark.radius());
            });
            self.line(places, line)?;
        }
        self.names(&panel.lines, &at)?;
        for line in &panel.lines {
            for point in line.points.iter().chain(&line.apart) {
                self.mark(at(point.x, point.y), point.mark, line.colour)?;
            }
        }
        for line in &panel.lines {
            for point in line.points.iter().chain(&line.apart) {
                let Some(label) = &point.label else { continue };
                let size = ((label.len() as f64 * f64::from(SMALL) * DIGIT) as i32 + 2, SMALL);
                if let Some(middle) = self.labels.place(at(point.x, point.y), size) {
                    self.text(label, middle, line.colour, HPos::Center)?;
                }
            }
        }
        Ok(())
    }

    /// Draws rectangles, with an edge if there is room. Of several rectangles at the same pixels, only one is drawn.
    fn tiles(&self, tiles: &[Tile], at: &impl Fn(f64, f64) -> Pixel) -> Result<(), DrawError> {
        let mut drawn = HashSet::new();
        for tile in tiles {
            let (from, to) = (at(tile.x.start, tile.y.end), at(tile.x.end, tile.y.start));
            let to = (to.0.max(from.0 + 1), to.1.max(from.1 + 1));
            if drawn.insert((from, to)) {
                self.root.draw(&Rectangle::new([from, to], tile.colour.filled()))?;
                if to.0 - from.0 > EDGED && to.1 - from.1 > EDGED {
                    self.root.draw(&Rectangle::new([from, to], BACKGROUND.stroke_width(1)))?;
                }
            }
        }
        Ok(())
    }

    fn line(&self, places: Vec<Pixel>, line: &Line) -> Result<(), DrawError> {
        if line.dashed {
            self.root.draw(&DashedPathElement::new(places, 5, 5, line.colour.stroke_width(2)))
        } else {
            self.root.draw(&PathElement::new(places, line.colour.stroke_width(2)))
        }
    }

    fn mark(&self, (x, y): Pixel, mark: Mark, colour: RGBColor) -> Result<(), DrawError> {
        // An edge in the colour of the background separates marks that touch.
        match mark {
            Mark::None => Ok(()),
            Mark::Dot => {
                self.root.draw(&Circle::new((x, y), DOT + 1, BACKGROUND.filled()))?;
                self.root.draw(&Circle::new((x, y), DOT, colour.filled()))
            }
            Mark::Diamond => {
                let corners = |radius: i32| [(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)];
                self.root.draw(&Polygon::new(corners(DIAMOND + 2), BACKGROUND.filled()))?;
                self.root.draw(&Polygon::new(corners(DIAMOND), colour.filled()))
            }
        }
    }

    /// Draws the names of lines at the right edge, each as close as possible to the line's last point.
    fn names(&mut self, lines: &[Line], at: &impl Fn(f64, f64) -> Pixel) -> Result<(), DrawError> {
        let named: Vec<_> = lines.iter().filter(|line| !line.name.is_empty()).collect();
        let named: Vec<_> = named.into_iter().filter_map(|line| Some((line, line.points.last()?))).collect();
        let ends: Vec<Pixel> = named.iter().map(|(_, point)| at(point.x, point.y)).collect();
        let (across, down) = self.within.clone();
        let heights: Vec<i32> = ends.iter().map(|(_, y)| *y).collect();
        for (((line, _), end), y) in named.iter().zip(&ends).zip(spread(&heights, NAME, down)) {
            let lead = vec![*end, (across.end + 5, y)];
            self.root.draw(&DashedPathElement::new(lead, 1, 4, line.colour.mix(0.6).stroke_width(1)))?;
            self.text(&short(&line.name), (across.end + 8, y), line.colour, HPos::Left)?;
        }
        Ok(())
    }

    fn text(&self, text: &str, at: Pixel, colour: RGBColor, across: HPos) -> Result<(), DrawError> {
        let style = style(SMALL, colour).pos(Pos::new(across, VPos::Center));
        self.root.draw(&Text::new(printable(text).into_owned(), at, style))
    }
}

impl Mark {
    fn radius(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Dot => DOT,
            Self::Diamond => DIAMOND,
        }
    }
}

/// Returns a name cut to the number of characters that fit.
fn short(name: &str) -> String {
    if name.chars().count() <= MOST_OF_A_NAME {
        return name.to_owned();
    }
    name.chars().take(MOST_OF_A_NAME - 1).chain(['…']).collect()
}
