"""The kernel in which the tests run a notebook, and ``record.py`` records it.

It is this environment's own Python, with our settings and not the user's.
"""

import os
import tempfile

import matplotlib
from jupyter_client import AsyncKernelManager
from nbval.kernel import NbvalKernelspecManager
from traitlets import default

# A user's settings that change what a cell shows, or what it runs.
USERS_OWN = (
    *("MPLBACKEND", "MATPLOTLIBRC", "GPT_PRESET", "PYTHONSTARTUP", "PYTHONWARNINGS"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "COLUMNS", "LINES", "PYTEST_ADDOPTS"),
)

# Run before the notebook: figures carry their data, comments on shapes are held to the
# shapes, what the notebook does with the
# exercises is not taken for a learner's progress, and no weights are used but those
# that are stored with the lessons. PyTorch for CUDA without triton warns on import.
KERNEL_SETUP = """
import logging, os, pathlib, tempfile
import matplotlib
import plot_data, shape_comments
from lesson_checks import notes
matplotlib.rcdefaults()
plot_data.register()
shape_comments.register()
notes.folder = tempfile.TemporaryDirectory()  # deleted with the kernel
notes.PROGRESS_FILE = pathlib.Path(notes.folder.name, notes.PROGRESS_FILE.name)
stored = pathlib.Path(notes.__file__).parents[1] / "data" / "tiny-alice"
os.environ["GPT2_DIR"] = str(stored)
logging.getLogger("torch.utils.flop_counter").setLevel("ERROR")
del logging, matplotlib, notes, os, pathlib, plot_data, shape_comments, stored, tempfile
"""

_settings = tempfile.TemporaryDirectory()


def clean_environment() -> None:
    """Take the user's settings out of this process and of those that it starts."""
    for name in USERS_OWN:
        os.environ.pop(name, None)
    os.environ["IPYTHONDIR"] = _settings.name
    matplotlib.get_cachedir()  # one for all kernels where the user's is read-only


def check_setup(reply: dict) -> None:
    """Stop if ``KERNEL_SETUP`` failed: silently, a kernel would go on without it."""
    if reply["content"]["status"] != "ok":
        raise RuntimeError("\n".join(reply["content"]["traceback"]))


class KernelManager(AsyncKernelManager):
    """Also knows this environment's Python, under nbval's name for it."""

    @default("kernel_spec_manager")
    def _kernel_spec_manager_default(self):
        return NbvalKernelspecManager()
