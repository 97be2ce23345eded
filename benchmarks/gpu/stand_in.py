"""A stand-in for the one small package without which no executor can be imported, where a machine lacks it.

platformdirs only names the folder in which compiled CPU code is kept. Nothing else is replaced.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType


def stand_in() -> list[str]:
    """Put a stand-in in the place of platformdirs if it is missing; returns the names of what was replaced."""
    if "platformdirs" in sys.modules or importlib.util.find_spec("platformdirs") is not None:
        return []
    module = ModuleType("platformdirs")
    module.user_cache_dir = lambda name, appauthor=False: str(Path(tempfile.gettempdir(), f"{name}-cache"))  # type: ignore[attr-defined]
    sys.modules["platformdirs"] = module
    return ["platformdirs"]
