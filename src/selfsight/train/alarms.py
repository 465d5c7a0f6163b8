"""Print and record what goes wrong during training: skipped steps, divergence, collapse."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from selfsight.command_hint import write_command
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.checkpoint_schedule import Saver
from selfsight.train.collapse import CollapseAlarm
from selfsight.train.training_state import State


class Alarms:
    """Writes events to the run folder; each names the run, the step and a checkpoint before it."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        saver: Saver,
        console: Console,
        past: Iterable[Any],
        *,
        classes: int | None = None,
    ) -> None:
        self.run, self.saver, self.console = run, saver, console
        self.expects_skips = recipe.precision == "fp16"  # whenever the scale of the loss is high
        self.said_skipped = False
        self.collapse = CollapseAlarm(
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            embedding_dim=getattr(recipe.method, "dim", None),
            classes=classes,
            past=past,
        )

    def check(self, state: State, record: Mapping[str, Any] | None) -> None:
        """Check the steps since the last record, and the record unless its step was skipped."""
        if first := state.scaler.read_first_skipped():
            sentence = f"Step {first} was skipped: its gradient was not finite."
            self._write("skipped", first, sentence)
            if not (self.expects_skips or self.said_skipped):
                self._print(f"{sentence} See where: {write_command('replay', self.run)}")
                self.said_skipped = True
        alarm = None if record is None else self.collapse.update(record)
        if record is not None and alarm is not None:
            self._write(alarm.event, record["step"], alarm.sentence)
            self._print(alarm.sentence)

    def record_divergence(self, state: State, sentence: str) -> None:
        """Record the first step of those that made the run diverge."""
        skipped = int(state.scaler.skipped_in_a_row)
        first = state.step - skipped + 1 if skipped else state.scaler.read_first_skipped()
        self._write("diverged", first or state.step, sentence)

    def _write(self, event: str, step: int, sentence: str) -> None:
        saved = self.saver.keep_before(step) if event in ("skipped", "diverged") else None
        self.run.add_event(
            {
                "event": event,
                "run": str(self.run.path),
                "step": step,
                "checkpoint": None if saved is None else checkpoint.BEFORE_SKIPPED,
                "checkpoint_step": saved,
                "sentence": sentence,
            }
        )

    def _print(self, sentence: str) -> None:
        self.console.print(sentence, soft_wrap=True)
