"""Every method by name: each file of this folder, but `base`, is one.

The classes of all files can be imported from here: `from selfsight.methods import MoCoConfig`.
"""

import importlib
import pkgutil
from typing import Any

from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step


def _read_classes(name: str, base: Any) -> list[Any]:
    """List the classes of this kind that a method file defines."""
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return [c for c in classes if issubclass(c, base) and c.__module__ == module.__name__]


_FILES = [file.name for file in pkgutil.iter_modules(__path__) if file.name != "base"]
_CLASSES = {c.__name__: c for f in _FILES for c in _read_classes(f, Method | MethodConfig)}
_CONFIGS: dict[str, type[MethodConfig]] = {f: _read_classes(f, MethodConfig)[0] for f in _FILES}
METHODS = {name: config for name, config in _CONFIGS.items() if not config.needs_labels}
# What the tables compare with; these learn from labels.
BASELINES = {name: config for name, config in _CONFIGS.items() if config.needs_labels}

__all__ = ["BASELINES", "METHODS", "DataInfo", "Method", "MethodConfig", "Moment", "Step"]
__all__ += sorted(_CLASSES)


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return _CLASSES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
