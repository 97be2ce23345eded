"""What every test runs under: no look-ups on a model hub, one thread for torch, no progress bars, nothing tuned."""

import os
import signal
import tempfile

# Before torch and transformers read them; programs that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TSPEC_TUNED_DIR"] = os.path.join(tempfile.gettempdir(), f"tspec-untuned-{os.getpid()}")

from support.checkpoints import long_folder, tiny_copy, tiny_folder

__all__ = ["long_folder", "tiny_copy", "tiny_folder"]

# A shell that runs the tests in the background has interrupts ignored; tests send them, to themselves and to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
