"""Every method by name: each file of this folder, but `base`, is one."""

import importlib
import pkgutil

from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step


def _read_config(name: str) -> type[MethodConfig]:
    """Return the settings class that a method file defines."""
    module = importlib.import_module(f"{__name__}.{name}")
    (config,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, MethodConfig)
        and value.__module__ == module.__name__
    )
    return config


_CONFIGS = {
    file.name: _read_config(file.name)
    for file in pkgutil.iter_modules(__path__)
    if file.name != "base"
}
METHODS = {name: config for name, config in _CONFIGS.items() if not config.needs_labels}
# What the tables compare with; these learn from labels.
BASELINES = {name: config for name, config in _CONFIGS.items() if config.needs_labels}

__all__ = ["BASELINES", "METHODS", "DataInfo", "Method", "MethodConfig", "Moment", "Step"]
