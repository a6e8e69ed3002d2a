use seamalloc_evict::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let schemes: Vec<SchemeKind> = if a[2]=="all" {SchemeKind::ALL.to_vec()} else {a[2].split(',').map(|s| s.parse().unwrap()).collect()};
    let belows: Vec<Below> = a[3].split(',').flat_map(|s| Below::named(s,&seamalloc::Config::parse(&std::env::var("CONF").unwrap_or_default()).unwrap()).unwrap()).collect();
    let parts: Vec<f64> = a[4].split(',').map(|s| s.parse().unwrap()).collect();
    for f in a[1].split(',') {
    let g = match generate::named(f) { Ok(p) => p.generate(0).unwrap(), Err(_) => read::read_path(f.as_ref()).unwrap() };
    let p = peak(&g).unwrap();
    eprintln!("{} peak {} MiB cost {} ms", g, p>>20, g.cost()/1000000);
    for part in &parts { for b in &belows { for s in &schemes {
        let r = judge(&g, p, *part, *s, b).unwrap();
        println!("{:.12} {part} {:10} {:10} {:>8} remat {} evict {} refus {} frag {} unus {}MiB inpl {} {:.2}s", g.name(), b.name(), s.name(),
          r.overhead().map(|o| format!("{o:.4}")).unwrap_or_else(|| r.failed().unwrap().to_string()), r.outcome.rematerialisations, r.outcome.evictions, r.outcome.refusals, r.outcome.fragmented_refusals, r.outcome.unusable_bytes.checked_div(r.outcome.fragmented_refusals).unwrap_or(0)>>20, r.outcome.in_place, r.seconds);
    }}}}
}
