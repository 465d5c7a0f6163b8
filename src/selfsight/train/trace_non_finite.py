"""Watch one step, and find where its first non-finite value comes from.

Every operation is checked, forward and backward, below autograd. An operation with finite inputs
and a non-finite output is a suspect; a module with a non-finite output is the proof.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).resolve().parents[1]
# Infinities in their outputs are intended (masks) or uninitialized memory.
NO_SUSPECTS = (
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("full", "full_like", "new_full", "fill", "masked_fill", "index_fill", "scalar_tensor"),
)
MAX_SUSPECTS = 1000

Phase = Literal["views", "forward", "loss", "backward", "optimizer"]


class Suspect(NamedTuple):
    """An operation that turned finite values into non-finite ones."""

    operation: str  # of torch
    place: str  # file and line of this package
    module: str | None  # in which it ran; None outside of all
    is_backward: bool


class Fault(NamedTuple):
    """Where the first non-finite value of a step comes from."""

    phase: Phase
    module: str | None  # None: no module, but the method's own code or the loss
    kind: str  # class of the module
    operation: str = ""
    place: str = ""
    rows: tuple[int, ...] = ()  # of the batch; empty if all, or if rows are not images
    parameters: tuple[str, ...] = ()  # whose gradients or values are not finite


class FiniteWatch(TorchDispatchMode):
    """Context for running a step of a method; `find` then returns the fault."""

    def __init__(self, method: nn.Module) -> None:
        super().__init__()
        self.method = method
        self.names = {module: name for name, module in method.named_modules()}
        self.kinds = {name: type(module).__name__ for module, name in self.names.items()}
        self.stack: list[str] = []
        self.starts: list[int] = []
        self.calls: list[tuple[int, int, str]] = []  # first and last node of autograd, module
        self.suspects: list[Suspect] = []
        self.first_module: tuple[str, bool, Tensor] | None = None  # name, inputs finite, output
        self.handles: list[Any] = []

    def __enter__(self) -> "FiniteWatch":
        for module in self.method.modules():
            self.handles.append(module.register_forward_pre_hook(self._enter_module))
            self.handles.append(module.register_forward_hook(self._leave_module, always_call=True))
        # Remembers the line of the forward pass for each operation of the backward pass.
        self.anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self.anomaly.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.anomaly.__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and note it if it is the first to give a value that is not finite."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if len(self.suspects) < MAX_SUSPECTS and not is_finite(outs := tree_leaves(out)):
            name = func.overloadpacket.__name__
            ids = {id(x) for x in outs}  # an operation in place has changed its input
            inputs = [x for x in tree_leaves((args, kwargs)) if id(x) not in ids]
            if name.rstrip("_") not in NO_SUSPECTS and is_finite(inputs):
                self._note(name)
        return out

    def _note(self, operation: str) -> None:
        node = torch._C._current_autograd_node()
        if node is None:
            module = self.stack[-1] if self.stack else None
            self.suspects.append(
                Suspect(operation, place_of(traceback.extract_stack()), module, False)
            )
            return
        number = node._sequence_nr()
        inside = [call for call in self.calls if call[0] <= number < call[1]]
        module = min(inside, key=lambda call: call[1] - call[0])[2] if inside else None
        metadata: Any = node.metadata  # typed as a method, which it is not
        lines = metadata.get("traceback_", [])
        self.suspects.append(Suspect(operation, _place_in_text(lines), module, True))

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self.stack.append(self.names[module])
        self.starts.append(torch._C._autograd._get_sequence_nr())

    def _leave_module(self, module: nn.Module, args: Any, out: Any) -> None:
        name = self.stack.pop()
        self.calls.append((self.starts.pop(), torch._C._autograd._get_sequence_nr(), name))
        in_forward = torch._C._current_autograd_node() is None
        if self.first_module is None and in_forward and module is not self.method:
            outs = [x for x in _tensors(out) if not is_finite([x])]
            if outs:
                self.first_module = (name, is_finite(_tensors(args)), outs[0].detach())

    def find(self, views: Sequence[Tensor], loss: Tensor, count: int) -> Fault | None:
        """Return the fault of the step that was run, with `count` images; None if all is finite."""
        grads = [
            name
            for name, p in self.method.named_parameters()
            if p.grad is not None and not is_finite([p.grad])
        ]
        weights = [name for name, p in self.method.named_parameters() if not is_finite([p])]
        parameters = tuple(grads or weights)
        if bad := [view for view in views if not is_finite([view])]:
            return Fault("views", None, "", rows=_rows(bad[0], count), parameters=parameters)
        if self.first_module is not None:
            name, inputs_finite, out = self.first_module
            suspect = self._suspect(lambda s: not s.is_backward and s.module == name)
            if not inputs_finite:  # it comes from the code that calls the module
                suspect = self._suspect(lambda s: not s.is_backward)
                name = (suspect and suspect.module) or ""
            return self._fault("forward", name, suspect, _rows(out, count), parameters)
        if not is_finite([loss]):
            suspect = self._suspect(lambda s: not s.is_backward)
            return self._fault("loss", "", suspect, (), parameters)
        if grads:
            suspect = self._suspect(lambda s: s.is_backward)
            name = (suspect and suspect.module) or ""
            return self._fault("backward", name, suspect, (), parameters)
        return Fault("optimizer", None, "", parameters=parameters) if weights else None

    def _suspect(self, wanted: Callable[[Suspect], bool]) -> Suspect | None:
        return next(filter(wanted, self.suspects), None)

    def _fault(
        self,
        phase: Phase,
        name: str,
        suspect: Suspect | None,
        rows: tuple[int, ...],
        parameters: tuple[str, ...],
    ) -> Fault:
        operation, place = ("", "") if suspect is None else (suspect.operation, suspect.place)
        if name == "":
            return Fault(phase, None, "", operation, place, rows, parameters)
        return Fault(phase, name, self.kinds[name], operation, place, rows, parameters)


def is_finite(values: Iterable[Any]) -> bool:
    """Return whether all tensors of floating point are finite; other values are."""
    return all(
        bool(x.isfinite().all())
        for x in values
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())
    )


def place_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """File and line of the innermost frame of this package outside of this file."""
    for frame in reversed(list(frames)):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE) and path != Path(__file__).resolve():
            return f"{path.relative_to(PACKAGE.parent)}, line {frame.lineno}"
    return ""


def _place_in_text(lines: Iterable[str]) -> str:
    """The same, of a formatted stack: `  File "x.py", line 3, in f` and more."""
    frames = []
    for line in lines:
        words = line.strip().split('"')
        if len(words) >= 3 and words[0] == "File ":
            number = words[2].split("line ")[-1].split(",")[0]
            if number.isdecimal():
                frames.append(traceback.FrameSummary(words[1], int(number), ""))
    return place_of(frames)


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def _rows(x: Tensor, count: int) -> tuple[int, ...]:
    """Rows of a batch that are not finite; empty if all are, or if rows are not images."""
    if x.dim() == 0 or len(x) != count:
        return ()
    bad = (~x.isfinite()).flatten(1).any(dim=1) if x.dim() > 1 else ~x.isfinite()
    rows = tuple(bad.nonzero().flatten().tolist())
    return rows if len(rows) < count else ()
