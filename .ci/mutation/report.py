"""The outcomes of mutants, as docs/mutants.md has them."""

from .listing import PARTS

COLUMNS = ["caught", "timed out", "missed", "unviable"]


def text(mutants, results):
    """Returns the table by part, and the mutants to look at."""
    lines = ["| part | mutants | judged | " + " | ".join(COLUMNS) + " |", "|---" * (3 + len(COLUMNS)) + "|"]
    for part in [*PARTS, "all"]:
        keys = [mutant.key for mutant in mutants if part in (mutant.part, "all")]
        outcomes = [results[key]["outcome"] for key in keys if key in results]
        counts = [len(keys), len(outcomes), *(outcomes.count(column) for column in COLUMNS)]
        lines.append(f"| {part} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    for outcome in ["timed out", "missed"]:
        for mutant in mutants:
            result = results.get(mutant.key)
            if result and result["outcome"] == outcome:
                reached = "" if outcome == "timed out" or result["tests"] else " (no test reaches it)"
                lines.append(f"{outcome}: {mutant.name}{reached}")
    used = sum(results[mutant.key].get("cpu_s", 0) for mutant in mutants if mutant.key in results)
    lines.append(f"judging took {used:,.0f} s of CPU time")
    return "\n".join(lines)
