"""What the processes of a training tell each other beside their tensors: results of the first, and that one failed.

It runs over the key-value store of torchrun's rendezvous, by asking now and then, so that nobody waits in a call that a
signal or a failure elsewhere could not end.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from torch import distributed

_OFTEN, _SELDOM = 0.02, 0.25  # seconds between two looks
_FAILURES, _CODE = "failures", "exit-code"


class Control:
    """The channel of one process of `size`. Made anew for each start of the group, so that a restart by torchrun does
    not find the failure before."""

    def __init__(self, store: distributed.Store, size: int):
        self._store, self._size = store, size
        self._messages = 0
        self._ours = threading.Event()  # this process knows why it ends, or that all is over
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    @classmethod
    def connect(cls, size: int) -> Control:
        """The channel of the group that torchrun's environment variables describe, once the process group stands."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(address, port, is_master=False, timeout=timedelta(minutes=5))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(distributed.PrefixStore(f"hardmine/{attempt}", store), size)

    def send(self, value: Any) -> None:
        """Give `value` to every other process, in the order in which they `receive`. Picklable."""
        content: Any = pickle.dumps(value)  # bytes, which the store takes, whatever its stub says
        self._store.set(f"message/{self._messages}", content)
        self._messages += 1

    def receive(self) -> Any:
        """The next value that the sender gave; waits for it. The last reader clears it away."""
        name = f"message/{self._messages}"
        self._messages += 1
        while not self._store.check([name]):
            time.sleep(_OFTEN)
        value = pickle.loads(self._store.get(name))
        if self._store.add(f"{name}/read", 1) == self._size - 1:
            self._store.delete_key(name)
            self._store.delete_key(f"{name}/read")
        return value

    def fail(self, code: int) -> bool:
        """Say that this process ends with an exit code. Whether it is the first to say so, and so the one whose message
        is to be shown; the others end on their own as soon as they look."""
        self._ours.set()
        if self._store.add(_FAILURES, 1) > 1:
            return False
        self._store.set(_CODE, str(code))
        return True

    def failed(self, seconds: float = 0.0) -> int | None:
        """The exit code of the process that failed first; None where none has within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            if self._store.check([_CODE]):
                return int(self._store.get(_CODE))
            if time.monotonic() >= until:
                return None
            time.sleep(_OFTEN)

    def close(self) -> None:
        """Watch no more."""
        self._ours.set()
        self._watching.join()

    def _watch(self) -> None:
        """End this process as soon as another has failed, wherever it stands: in a collective it could hear nothing."""
        while not self._ours.wait(_SELDOM):
            try:
                code = self.failed()
            except RuntimeError as error:
                if self._ours.is_set():
                    return
                sys.stderr.write(f"hardmine: the launcher of this training is gone ({error})\n")
                code = 1
            if code is not None and not self._ours.is_set():
                sys.stderr.flush()
                os._exit(code)
