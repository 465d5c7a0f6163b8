"""When a run saves its checkpoint, and which one is kept if the run cannot continue."""

import math
import shutil
import time

from selfsight import dist
from selfsight.errors import DivergedError
from selfsight.methods import Step
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.training_state import State


class Saver:
    """Saves every few epochs, steps or minutes, and never after a skipped step."""

    def __init__(self, run: Run, recipe: Recipe, steps_per_epoch: int, loaded_step: int) -> None:
        self.run, self.recipe, self.steps_per_epoch = run, recipe, steps_per_epoch
        self.kept = [loaded_step] if loaded_step else []  # steps of the checkpoints, oldest first
        self.saved = False  # whether this process saved the last of them
        self.finite_step = 0  # of the last step found finite in all it computed
        self.due, self.saved_at = False, time.monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether the recipe wants a checkpoint after this step, or still waits for one."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        every = self.recipe.save_steps
        self.due |= rest == 0 and epochs % self.recipe.save_every == 0
        self.due |= every is not None and step % every == 0
        return self.due

    def was_saved_before(self, step: int) -> bool:
        """Return whether the step before was saved: what was asked for then is done."""
        return self.kept[-1:] == [step - 1]

    def is_late(self) -> bool:
        """Return whether the last checkpoint is older than the recipe's minutes."""
        minutes = self.recipe.save_minutes
        return minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes

    def save(self, state: State, step: Step, *, wait: bool = True) -> None:
        """Save the state; after a skipped step, wait for the next one that is not skipped.

        The steps before a run diverges are often skipped, with weights that are already useless.
        Without `wait`, since no step follows, only weights that are not finite are not saved.
        """
        skipped = int(state.scaler.skipped_in_a_row)
        if wait and (skipped or not math.isfinite(float(dist.mean(step.loss)))):
            self.due = True
            return
        saved = state.state_dict()
        name = checkpoint.find_non_finite(saved)
        if name is not None:
            raise DivergedError(f"By step {state.step} {name} is no longer finite.")
        dist.on_first(lambda: self._write(saved))
        self.kept, self.saved = [*self.kept[-1:], state.step], True
        self.due, self.saved_at = False, time.monotonic()

    def _write(self, saved: checkpoint.Saved) -> None:
        checkpoint.save(self.run, saved)
        shutil.rmtree(self.run.overwritten, ignore_errors=True)

    def keep_before(self, step: int) -> int | None:
        """Keep the newest checkpoint before a step for a replay; return its step, if any."""
        for name, kept in zip(
            (checkpoint.LAST, checkpoint.PREVIOUS), reversed(self.kept), strict=False
        ):
            if kept < step:
                checkpoint.keep_before_skipped(self.run, name)
                return kept
        return None

    def set_diverged_aside(self) -> str:
        """Rename the last checkpoint unless a later record was finite; say which one is left."""
        if not self.saved or self.finite_step > self.kept[-1]:
            return self.describe_kept()
        dist.on_first(lambda: checkpoint.set_last_aside(self.run))
        step = self.kept.pop()
        left = self.describe_kept() if self.kept else "There is no other."
        return f"The checkpoint of step {step}, which may be spoiled, is now diverged.pt. {left}"

    def describe_kept(self) -> str:
        """Return a sentence about the checkpoint that the run can be resumed from."""
        if not self.kept:
            return "No checkpoint had been saved."
        if not self.run.checkpoints.exists():
            return "Its checkpoints are gone."
        return f"The last good checkpoint, of step {self.kept[-1]}, is kept."
