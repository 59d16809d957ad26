"""Durable runs under kill -9, a thousand times: not how quick they are, but whether they keep their word."""

from __future__ import annotations

from bench.harness import Settings
from bench.report import Table, Verdict, at_least

KILLS = 1000
QUICK_KILLS = 60
SEED = 1


def run(settings: Settings) -> list[Table]:
    """Kill, freeze, race and cancel until enough processes were killed, and see which promises were kept."""
    if settings.peers_only:
        return []
    from holdfast.torture.session import torture

    kills = QUICK_KILLS if settings.quick else KILLS
    verdict = torture(0.0, kills=kills, seed=SEED)
    kept = Table("torture: promises", ("tested", "breaches"))
    for each in verdict.promises:
        kept.rows.append((each.promise, each.tested, len(each.breaches)))
        if each.breaches or not each.tested:
            kept.verdicts.append(Verdict(f"{each.promise}: {'not kept' if each.breaches else 'not tested'}", False))
    held = sum(each.status == "PASS" for each in verdict.promises)
    kept.verdicts.append(at_least("promises kept", held, len(verdict.promises), ""))
    if verdict.folder is not None:
        kept.notes.append(f"the evidence is in {verdict.folder}")
    progress = verdict.progress
    done = Table("torture: what was done", ("count",))
    done.rows += [
        ("processes killed", progress.kills),
        *((f"  at {point}", count) for point, count in sorted(progress.points.items())),
        ("runs finished", progress.finished),
        ("doubts answered", progress.answered),
        ("doubts repeated", progress.repeated),
        ("zombies refused", progress.zombies),
        ("races", progress.races),
        ("cancelled", progress.cancels),
        ("seconds", progress.seconds),
    ]
    done.verdicts.append(at_least("processes killed", progress.kills, kills, ""))
    done.notes.append(f"seed {verdict.seed}")
    return [kept, done]
