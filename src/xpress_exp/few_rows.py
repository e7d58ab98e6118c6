"""Linear maps with frozen weights, fast for the few rows of a decoding step.

PyTorch's CPU `linear` is badly shaped for 2 to 32 rows, and every other layout of the weight is the
best one somewhere. Which one, is measured once per machine and kept in a file, so that two runs on
one machine round alike. The plain product stays the reference and the path of every other case.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from xpress_exp.run_dir import fingerprint, read_json, write_json

# A layout is chosen for each of these numbers of rows; r rows use that of the next one above.
ROWS = (1, 2, 4, 8, 16, 32, 64)
# Smaller weights sit in a core's cache, where the layout makes no difference worth a copy.
SMALLEST = 1 << 16
# Choices within this share of the plain product's time are noise: the plain product is kept.
WORTH = 0.93
SWEEPS = 3

Product = Callable[[Tensor], Tensor]
Layouts = Mapping[int, str]
PLAIN: Layouts = dict.fromkeys(ROWS, "plain")


def _plain(weight: Tensor) -> Product:
    return lambda rows: functional.linear(rows, weight)


def _columns(weight: Tensor) -> Product:
    return lambda rows: torch.mm(weight, rows.t()).t()


def _transposed(weight: Tensor) -> Product:
    turned = weight.t().contiguous()
    return lambda rows: torch.mm(rows, turned)


def _packed(weight: Tensor) -> Product:
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda rows: multiply(rows, blocked, None, "none", [], "")


MAKERS: dict[str, Callable[[Tensor], Product]] = {
    "plain": _plain,
    "columns": _columns,
    "transposed": _transposed,
    "packed": _packed,
}


def available(weight: Tensor) -> list[str]:
    """Names of the layouts that `weight` [out, in] can have; 'plain' alone off the CPU."""
    if weight.device.type != "cpu" or weight.numel() < SMALLEST:
        return ["plain"]
    packable = weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return [name for name in MAKERS if name != "packed" or packable]


class FewRows(nn.Linear):
    """`nn.Linear` without bias on a weight that no longer changes; no gradients through it.

    weight [out, in]: kept as it is, not copied. layouts: number of rows -> name of MAKERS. Inputs
    of more rows than the largest of ROWS, or with gradients enabled, take the plain product.
    """

    def __init__(self, weight: Tensor, layouts: Layouts = PLAIN) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, False)
        self.register_parameter("bias", None)
        made = {name: MAKERS[name](weight.detach()) for name in set(layouts.values())}
        self._products = {rows: made[name] for rows, name in layouts.items()}

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = input.numel() // self.in_features
        if rows > ROWS[-1] or torch.is_grad_enabled():
            return functional.linear(input, self.weight)
        # 1, 2, 4, ...: the power of two at or above the number of rows.
        product = self._products[1 << (rows - 1).bit_length() if rows > 1 else 1]
        found = product(input.reshape(rows, self.in_features))
        return found.reshape(*input.shape[:-1], self.out_features)


class LayoutChoice:
    """The layouts measured fastest on this machine, by shape and dtype; kept in `folder`.

    Without a folder nothing is kept: a new process measures again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.file = None if folder is None else folder / f"layouts-{_machine()}.json"
        known = self.file is not None and self.file.exists()
        self._chosen: dict[str, dict[str, str]] = read_json(self.file) if known else {}  # type: ignore

    def __call__(self, weights: Sequence[Tensor]) -> Layouts:
        """Layouts for weights of one shape, measured through all of them in turn, as a model reads
        them: one weight alone would stay in the cache."""
        names = available(weights[0])
        if names == ["plain"]:
            return PLAIN
        out, inner = weights[0].shape
        key = f"{out}x{inner}-{str(weights[0].dtype).removeprefix('torch.')}"
        if key not in self._chosen:
            best = _fastest(weights, names)
            self._chosen[key] = {str(rows): name for rows, name in best.items()}
            if self.file is not None:
                write_json(self.file, self._chosen)
        return {int(rows): name for rows, name in self._chosen[key].items()}


def _machine() -> str:
    facts = [torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()]
    return fingerprint([*facts, _cpu_name()])


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith("model name")), "unknown")


@torch.inference_mode()
def _fastest(weights: Sequence[Tensor], names: Sequence[str]) -> dict[int, str]:
    """The layout of the least time for every number of rows."""
    best: dict[int, tuple[float, str]] = {}
    for name in names:
        products = [MAKERS[name](weight) for weight in weights]
        for rows in ROWS:
            inputs = torch.randn(rows, weights[0].shape[1], dtype=weights[0].dtype)
            taken = min(_sweep(products, inputs) for _ in range(SWEEPS))
            if name == "plain":
                best[rows] = (WORTH * taken, name)
            elif taken < best[rows][0]:
                best[rows] = (taken, name)
    return {rows: name for rows, (_, name) in best.items()}


def _sweep(products: Sequence[Product], inputs: Tensor) -> float:
    begun = time.perf_counter()
    for product in products:
        product(inputs)
    return time.perf_counter() - begun


def freeze_linears(module: nn.Module, choice: LayoutChoice) -> None:
    """Replace every bias-free `nn.Linear` below `module` by a `FewRows` of the same weight."""
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.bias is None
    ]
    shapes: dict[tuple[int, ...], list[Tensor]] = {}
    for _, _, child in found:
        shapes.setdefault(tuple(child.weight.shape), []).append(child.weight.detach())
    for parent, name, child in found:
        layouts = choice(shapes[tuple(child.weight.shape)])
        setattr(parent, name, FewRows(child.weight, layouts))


_SHARED: weakref.WeakValueDictionary[tuple[object, ...], FewRows] = weakref.WeakValueDictionary()


def shared(weight: Tensor, choice: LayoutChoice) -> FewRows:
    """The `FewRows` of a large weight that several models read; copied once while any holds it."""
    # The entry holds the weight, so its address stays its own as long as the entry lives.
    key = (weight.data_ptr(), weight.shape, weight.dtype)
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = FewRows(weight, choice([weight]))
    return found
