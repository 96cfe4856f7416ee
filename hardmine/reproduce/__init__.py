"""`reproduce SET`: a published table run again, over seeds and training sets, beside the published figures."""

from hardmine.reproduce.run import Reproduced, reproduce

__all__ = ["Reproduced", "reproduce"]
