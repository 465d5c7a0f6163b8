"""Where the time of a run goes, from the start of its process to the end."""

import os
import time

PHASES = (
    "imports",
    "data",
    "kernels",
    "compile",
    "graph",
    "steps",
    "saving",
    "evaluation",
    "report",
)


class Stopwatch:
    """Divides the time since `began`, by the monotonic clock, among the phases of a run.

    Every second belongs to a phase: data are opened and decoded until training starts; kernels is
    what this waits for the augmentation's kernels; compile ends with the first step, graph with the
    choice between plain steps and a CUDA graph. `meanwhile` counts seconds of another thread.
    """

    def __init__(self, began: float | None = None) -> None:
        self.last = time.monotonic() if began is None else began
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.meanwhile = 0.0
        self.lap("imports")

    def lap(self, phase: str) -> None:
        """Count the time since the last call for a phase."""
        now = time.monotonic()
        self.seconds[phase] += now - self.last
        self.last = now

    def record(self) -> dict[str, float]:
        """The seconds of each phase, and of all; "meanwhile" is not among those."""
        seconds = {phase: round(spent, 2) for phase, spent in self.seconds.items()}
        total = round(sum(self.seconds.values()), 2)
        return seconds | {"total": total, "meanwhile": round(self.meanwhile, 2)}


def process_began() -> float:
    """When this process began, by the monotonic clock; now, where the system does not say."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # a name may hold spaces
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # seconds after the boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux
        age = 0.0
    return time.monotonic() - age


def describe_seconds(record: dict[str, float]) -> str:
    """One line, such as "Time: 12.3 s (imports 2.0, steps 10.3)."; without phases of no time."""
    parts = [f"{phase} {record[phase]:.1f}" for phase in PHASES if record[phase] >= 0.05]
    return f"Time: {record['total']:.1f} s ({', '.join(parts)})."
