"""Which keys a training block may see (dFlash): its own document strictly before its anchor, and
its own block in both directions."""

from __future__ import annotations

import torch
from torch import Tensor


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
