"""Which keys a training block may see (dFlash): its own document strictly before its anchor, and
its own block in both directions.

`block_mask` says it as one matrix; `block_groups` says the same without the keys that a group of
blocks never sees, so that attention costs what its documents cost and not the square of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Blocks that share a call: each sees its neighbours' slots in vain, more calls cost more starts.
GROUP_BLOCKS = 16


def block_mask(anchors: Tensor, document_ids: Tensor, block_size: int) -> Tensor:
    """Boolean attention mask [n*P, S + n*P], True where a query may look.

    anchors int64 [n] index the packed context; document_ids int64 [S]. The anchor's own feature is
    excluded: when decoding, the target has not processed the anchor yet.
    """
    context = torch.arange(len(document_ids), device=anchors.device)
    before = context[None, :] < anchors[:, None]
    same_document = document_ids[None, :] == document_ids[anchors][:, None]
    own_block = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    to_context = (before & same_document).repeat_interleave(block_size, 0)
    to_blocks = own_block.repeat_interleave(block_size, 0).repeat_interleave(block_size, 1)
    return torch.cat([to_context, to_blocks], 1)


@dataclass(frozen=True)
class BlockGroup:
    """Neighbouring blocks of one document: their number of slots q, the context [start, stop)
    that one of them sees, and the mask bool [q, stop - start + q] over it and their own slots."""

    num_slots: int
    context: slice
    mask: Tensor


def block_groups(
    anchors: Tensor, document_ids: Tensor, block_size: int, group_blocks: int = GROUP_BLOCKS
) -> tuple[BlockGroup, ...]:
    """`block_mask` in groups of at most `group_blocks` blocks, in the order of the anchors.

    anchors int64 [n] ascending, document_ids int64 [S] ascending. Raises ValueError for anchors
    that do not ascend.
    """
    if bool((anchors[1:] < anchors[:-1]).any()):
        raise ValueError("anchors must ascend; sort the anchors of a batch")
    documents, counts = torch.unique_consecutive(document_ids[anchors], return_counts=True)
    starts = torch.searchsorted(document_ids, documents).tolist()
    groups = []
    for start, own in zip(starts, anchors.split(counts.tolist()), strict=True):
        for part in own.split(group_blocks):
            context = slice(start, max(start, int(part[-1])))
            mask = block_mask(part - start, document_ids[start : int(part[-1]) + 1], block_size)
            seen = torch.ones(mask.shape[1], dtype=torch.bool, device=mask.device)
            seen[context.stop - start] = False  # the last anchor's own feature: nobody sees it
            groups.append(BlockGroup(len(part) * block_size, context, mask[:, seen]))
    return tuple(groups)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | tuple[BlockGroup, ...] | None
) -> Tensor:
    """Grouped-query attention of query [b, heads, q, d] over keys and values [b, kv_heads, k, d].

    mask: bool [q, k], or `block_groups`, whose blocks are the queries and the last q of the keys;
    None hides nothing. Returns [b, heads, q, d].
    """
    if mask is None or isinstance(mask, Tensor):
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    sizes = [group.num_slots for group in mask]
    context = keys.shape[2] - sum(sizes)
    key_context, *own_keys = keys.split([context, *sizes], 2)
    value_context, *own_values = values.split([context, *sizes], 2)
    mixed = [
        scaled_dot_product_attention(
            queries,
            torch.cat([key_context[:, :, group.context], own_key], 2),
            torch.cat([value_context[:, :, group.context], own_value], 2),
            attn_mask=group.mask,
            enable_gqa=True,
        )
        for group, queries, own_key, own_value in zip(
            mask, query.split(sizes, 2), own_keys, own_values, strict=True
        )
    ]
    return torch.cat(mixed, 2)
