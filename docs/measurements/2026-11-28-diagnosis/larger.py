"""Predicted and real factors of larger inputs: python3 larger.py SEAMALLOC FOLDER. The folder has snapshots longest-JOB-LENGTH.snapshot.pickle.gz of the jobs of
longest.py at one length; longest.jsonl, beside this program, the longest lengths that ran within a limit."""
import json, pathlib, subprocess, sys

command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
here = pathlib.Path(__file__).parent
real = [json.loads(line) for line in open(here / "longest.jsonl")]
strategies = {"native": "caching", "expandable": "expandable", "ours": "stitch"}
print("| job | recorded length | live, GiB | persistent, GiB | allocator | longest that ran | factor | predicted | difference |")
print("|---|---:|---:|---:|---|---:|---:|---:|---:|")
for path in sorted(folder.glob("longest-*.snapshot.pickle.gz")):
    _, job, length = path.name.split(".")[0].split("-")
    for row in (row for row in real if row["job"] == job):
        device = f"sim:h100,capacity={row['gib']:g}GiB"
        run = subprocess.run([command, "whatif", path, "--device", device, "--json"], capture_output=True, text=True)
        lines = {line["strategy"]: line for line in map(json.loads, run.stdout.splitlines())}
        line, factor = lines[strategies[row["label"]]], row["longest"] / int(length)
        found = line["largest_step"]
        gib = [line[key] / 2**30 for key in ("peak_live", "persistent")]
        print(f"| {job} | {length} | {gib[0]:.2f} | {gib[1]:.2f} | {row['label']} | {row['longest']} | {factor:.3f} | {found} | {(found / factor - 1) * 100:+.1f}% |")
