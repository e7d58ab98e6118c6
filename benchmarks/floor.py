"""What a training step cannot be faster than on this machine, and how close ours comes.

The floor is the sum over the step's matrix products of their operations over the rate measured for
that very shape, plus the bytes that the rest must move over the bandwidth of memory in use. A
product runs as one plain call on operands in place; its shape is that of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import common
import torch
import train_job as job
import train_worker
from common import Figure

USED = job.BLOCK - 1  # the anchor's own slot needs no logits


@dataclass(frozen=True)
class Product:
    """`count` products [rows, inner] @ [inner, columns] of a step."""

    rows: int
    inner: int
    columns: int
    count: int = 1


def linear(rows: int, inputs: int, outputs: int, gradient: bool = True) -> list[Product]:
    """A layer's forward product and those of its weight and, unless its input is data, input."""
    forward, weight = Product(rows, inputs, outputs), Product(outputs, rows, inputs)
    return [forward, weight, *([Product(rows, outputs, inputs)] if gradient else [])]


def drafter_products(anchors: int) -> list[Product]:
    """Projections, MLP and attention over exactly the visible keys, rounded up to full blocks."""
    slots, narrow = anchors * job.BLOCK, job.KV_HEADS * job.HEAD_DIM
    found = linear(job.CONTEXT, job.NUM_FEATURES * job.HIDDEN, job.HIDDEN, gradient=False)
    for rows in (job.CONTEXT, slots):
        found += linear(rows, job.HIDDEN, narrow) * 2  # k, v
    found += linear(slots, job.HIDDEN, job.HEADS * job.HEAD_DIM) * 2  # q, o
    found += linear(slots, job.HIDDEN, job.INTERMEDIATE) * 2
    found += linear(slots, job.INTERMEDIATE, job.HIDDEN)
    # A document's mean visible context is half of it. Two products forward, five backward.
    keys = job.CONTEXT // job.DOCUMENTS // 2 + job.BLOCK
    per_block = Product(job.HEADS // job.KV_HEADS * job.BLOCK, job.HEAD_DIM, keys)
    return [*found, Product(**{**vars(per_block), "count": 7 * anchors * job.KV_HEADS})]


def head_products(anchors: int) -> list[Product]:
    """The xPress head's layers, for the refined law and each consistency pass."""
    slots, rank = anchors * job.BLOCK, job.RANK
    shared = linear(slots, job.HIDDEN, rank) + linear(anchors, job.HIDDEN, rank)
    laws = linear(slots, 3 * rank, rank) + linear(slots, rank, 2 * rank) * 2
    return shared + (laws + linear(slots, 2 * rank, rank)) * (1 + job.PASSES)


def vocabulary_products(anchors: int, model: str) -> list[Product]:
    """Target logits, base logits and their gradient, and the readout of each corrected law."""
    rows, corrected = anchors * USED, (1 + job.PASSES) * (model == "xpress")
    found = [Product(rows, job.HIDDEN, job.VOCAB, 2), Product(rows, job.VOCAB, job.HIDDEN)]
    if corrected:
        found += [
            Product(rows, job.RANK, job.VOCAB, corrected),
            Product(rows, job.VOCAB, job.RANK, corrected),
            Product(job.VOCAB, rows, job.RANK, corrected),
        ]
    return found


def bytes_moved(anchors: int, model: str) -> float:
    """Of the step's largest matrices: the target's logits become its law (read, write); each law
    reads its logits and the target's and writes a gradient; a corrected one reads the base logits
    and adds to their gradient (read, write). The head's two tables get a gradient each."""
    corrected = (1 + job.PASSES) * (model == "xpress")
    matrices = 2 + 3 + corrected * (3 + 3)
    tables = 2 * job.VOCAB * job.RANK * (model == "xpress")
    return 4.0 * (matrices * anchors * USED * job.VOCAB + tables)


def product_call(product: Product) -> Callable[[], object]:
    """One product on operands that are in place. Reused operands make small ones a little too
    fast, which only lowers the floor."""
    left = torch.randn(product.rows, product.inner)
    right = torch.randn(product.columns, product.inner).t()
    out = torch.empty(product.rows, product.columns)
    return lambda: torch.mm(left, right, out=out)


class Floor:
    """The floor of one kind of step; `seconds` measures all of its parts once."""

    def __init__(self, model: str, anchors: int) -> None:
        products = drafter_products(anchors) + vocabulary_products(anchors, model)
        if model == "xpress":
            products += head_products(anchors)
        self.counts: dict[Product, int] = {}
        for product in products:
            shape = Product(product.rows, product.inner, product.columns)
            self.counts[shape] = self.counts.get(shape, 0) + product.count
        self.bytes = bytes_moved(anchors, model)
        self.source, self.sink = torch.ones(2**25), torch.ones(2**25)  # 128 MiB each

    def copy(self) -> None:
        self.sink.copy_(self.source)

    def parts(self) -> tuple[float, float]:
        """(seconds of all products, seconds of all bytes)."""
        products = 0.0
        for shape, count in self.counts.items():
            call = product_call(shape)
            call()  # so that its memory is in use
            products += count * common.seconds(call)
        self.copy()
        moved = 2 * self.source.nbytes
        return products, self.bytes * min(common.seconds(self.copy) for _ in range(3)) / moved


def compare(model: str, anchors: int, rounds: int) -> Figure:
    """Time of our step over its floor; both measured in every round."""
    step = train_worker.prepare(job.Work(model, anchors, "fused"))
    floor = Floor(model, anchors)
    step()
    steps, floors, parts = [], [], (0.0, 0.0)
    for _ in range(rounds):
        steps.append(common.seconds(step))
        parts = floor.parts()
        floors.append(sum(parts))
    operations = sum(2 * p.rows * p.inner * p.columns * c for p, c in floor.counts.items())
    note = (
        f"{operations / 1e9:.0f} GFLOP in {parts[0]:.2f} s and {floor.bytes / 1e9:.1f} GB in "
        f"{parts[1]:.2f} s"
    )
    return common.ratio(steps, floors, note)


def figures(quick: bool) -> dict[str, Figure]:
    rounds = 1 if quick else 4
    return {
        f"train_step_over_floor_{model}_{anchors}": compare(model, anchors, rounds)
        for model in ("xpress", "dflash")
        for anchors in (32, 64)
    }


if __name__ == "__main__":
    common.main(figures)
