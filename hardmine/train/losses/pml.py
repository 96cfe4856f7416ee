"""Losses of pytorch-metric-learning by their class name: `pml:CircleLoss`, `pml:ProxyAnchorLoss`, ...

The package is optional (the extra `pml`). Its losses are computed by its own code, on the rows of a batch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr, create_model
from torch import Tensor, nn

from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import Loss, LossOutput, losses

_PACKAGE = "pytorch_metric_learning"
# options that are objects of the package: a table {name = "LpDistance", p = 1}, and where its class is looked for
_OBJECTS = {
    "distance": "distances",
    "reducer": "reducers",
    "embedding_regularizer": "regularizers",
    "weight_regularizer": "regularizers",
}
_SIZES = ("num_classes", "embedding_size", "descriptors_dim")  # known from the data and the network, where required
_INNER = {"mat_based_loss", "collect_stats"}  # set by the classes themselves
_UNFIT = {
    "ManifoldLoss": "knows no classes",
    "VICRegLoss": "compares two views that are handed to it apart, and knows no classes",
    "DynamicSoftMarginLoss": "keeps a histogram that is in no checkpoint, so a resumed run would be another one",
}


class PmlLoss(Options):
    """A loss of pytorch-metric-learning. Its options are those of its class; `distance`, `reducer`,
    `embedding_regularizer` and `weight_regularizer` are tables, such as {name = "LpDistance", p = 1}.

    value: what the class returns for the rows (drawn negatives only where a miner chose among them). It has no loss for
    each item: per_item holds that one number for every item, and weights of a sampler that are not all equal are
    refused. Where the recipe names a miner its tuples go to the class as `indices_tuple`, otherwise the class pairs the
    rows itself; where classes overlap, it is handed all pairs but theirs.

    Classes with weights (proxies, class centres) get the number of classes and the descriptors' length from `start`;
    they are learned at weight_lr, without weight decay.
    """

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = False
    theirs: ClassVar[type[nn.Module]]
    weight_lr: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    _module: nn.Module | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Make what has no weights at once, so that an unfit option is said here."""
        if not self._required():
            self._module = self._build({})
        if self.weight_lr is not None and self._module is not None and not list(self._module.parameters()):
            raise InputError(f"pml:{self.theirs.__name__} has no weights: leave weight_lr out")

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`. Raises InputError also for what the class says of its arguments."""
        if self._module is None:
            raise InputError(f"pml:{self.theirs.__name__} has weights: call start(classes, device, dim) first")
        if weight is not None and weight.shape != (batch.items,):
            raise InputError(f"weight has shape {tuple(weight.shape)} for {batch.items} items")
        factor = 1.0
        if weight is not None and batch.items:
            factor = float(weight[0])
            if bool((weight != weight[0]).any()):
                raise InputError(
                    f"pml:{self.theirs.__name__} gives one number for the batch, and this sampler weighs every item: "
                    "use a sampler without weights, or one of hardmine's own losses"
                )
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            x = full_precision(batch.descriptors)
            rows = len(x) if batch.pairs is None or tuples is not None else 2 * batch.pairs
            chosen = _all_but_overlapping(batch) if tuples is None else tuples.triplets
            try:
                value = self._module(x[:rows], batch.labels[:rows].to(x.device), chosen)
            except (ValueError, NotImplementedError) as error:
                raise InputError(f"pml:{self.theirs.__name__}: {error}") from error
            value = factor * value.reshape(()) + 0 * x.sum()  # a batch it can do nothing with keeps a graph
        return LossOutput(value, value.detach().expand(batch.items))

    def start(self, classes: int, device: torch.device | str = "cpu", dim: int = 0) -> None:
        """See `Learnable.start`. The weights are drawn from torch's generator."""
        required = self._required()
        if ("num_classes" in required and classes < 1) or (required - {"num_classes"} and dim < 1):
            raise InputError(f"pml:{self.theirs.__name__} needs the number of classes and of the descriptors' elements")
        if required:
            self._module = self._build({name: classes if name == "num_classes" else dim for name in required})
        assert self._module is not None  # made with the options where nothing is required
        self._module.to(device)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """See `Learnable.parameter_groups`. Raises InputError where there are weights and no weight_lr."""
        weights = [] if self._module is None else list(self._module.parameters())
        if weights and self.weight_lr is None:
            raise InputError(f"pml:{self.theirs.__name__} learns weights: give their learning rate, loss.weight_lr")
        return [{"params": weights, "lr": self.weight_lr, "weight_decay": 0.0}] if weights else []

    def state_dict(self) -> dict[str, Tensor]:
        """See `Learnable.state_dict`."""
        state = {} if self._module is None else self._module.state_dict()
        return {name: value.detach().clone() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Learnable.load_state_dict`."""
        shapes = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        saved = {name: tuple(value.shape) for name, value in state.items()}
        if shapes != saved:
            raise StoreError(f"the saved loss has weights {saved}, pml:{self.theirs.__name__} of this run has {shapes}")
        if self._module is not None:
            self._module.load_state_dict(dict(state))

    def _required(self) -> set[str]:
        known = _parameters(self.theirs)
        return {name for name in _SIZES if name in known and known[name] is inspect.Parameter.empty}

    def _build(self, sizes: dict[str, int]) -> nn.Module:
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "weight_lr"}
        for option, where in _OBJECTS.items():
            if option in given:
                given[option] = _made(option, where, given[option])
        return _call(f"pml:{self.theirs.__name__}", self.theirs, {**given, **sizes})


@losses.family("pml")
@functools.cache
def pml_loss(name: str) -> type[Loss]:
    """The loss whose class in pytorch-metric-learning is called `name`. Raises MissingError where the package is not
    installed, UnknownNameError, InputError where it is not for descriptors with labels."""
    found, base = _classes("losses"), _package("losses").BaseMetricLossFunction
    known = {n: c for n, c in found.items() if issubclass(c, base) and c is not base and n != "GenericPairLoss"}
    if name not in known:
        raise UnknownNameError("loss of pytorch-metric-learning", name, known.keys() - _UNFIT.keys())
    if name in _UNFIT:
        raise InputError(f"pml:{name} {_UNFIT[name]}")
    fields: dict[str, Any] = {
        option: (Any, ... if default is inspect.Parameter.empty else default)
        for option, default in _parameters(known[name]).items()
        if option not in _SIZES or default is not inspect.Parameter.empty
    }
    model = create_model(name, __base__=PmlLoss, __doc__=PmlLoss.__doc__, **fields)
    model.theirs = known[name]
    return model


def _parameters(kind: type[nn.Module]) -> dict[str, Any]:
    """The keyword options of a class and of those it hands its further ones to, with their defaults."""
    found: dict[str, Any] = {}
    for each in kind.__mro__:
        if "__init__" not in each.__dict__ or each is nn.Module:
            continue
        for name, parameter in list(inspect.signature(each.__init__).parameters.items())[1:]:  # type: ignore[misc]
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name not in _INNER:
                found.setdefault(name, parameter.default)
    return found


def _all_but_overlapping(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """All pairs that may be compared, as indices, where some may not; None where the class can list them itself."""
    if batch.not_negative is None:
        return None
    _, positive, negative = batch.rows()
    a, p = torch.nonzero(positive.fill_diagonal_(False), as_tuple=True)
    b, n = torch.nonzero(negative, as_tuple=True)
    return a, p, b, n


def _made(option: str, where: str, table: Any) -> Any:
    """The object of the package that a table describes."""
    if not isinstance(table, Mapping) or "name" not in table:
        raise InputError(f'loss.{option}: expected a table with a name, {{name = "..."}}, and not {table!r}')
    known = _classes(where)
    if table["name"] not in known:
        raise UnknownNameError(f"name in loss.{option}", str(table["name"]), known)
    kind = known[table["name"]]
    return _call(f"loss.{option}", kind, {name: value for name, value in table.items() if name != "name"})


def _call(what: str, kind: type[Any], options: dict[str, Any]) -> Any:
    """kind(**options), with what it does not know or does not take as an error of ours."""
    known = _parameters(kind)
    for name in options.keys() - known.keys():
        raise UnknownNameError(f"option of {what}:", name, known)
    try:
        return kind(**options)
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"{what}: {error or 'it refuses these options'} (given: {options})") from error


def _classes(where: str) -> dict[str, type[Any]]:
    return {name: value for name, value in vars(_package(where)).items() if inspect.isclass(value)}


def _package(where: str) -> ModuleType:
    try:
        return importlib.import_module(f"{_PACKAGE}.{where}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != _PACKAGE:
            raise
        raise MissingError(
            'losses named "pml:..." are those of pytorch-metric-learning, which is not installed: '
            "pip install pytorch-metric-learning"
        ) from error
