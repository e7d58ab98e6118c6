"""What drafter and head are trained for."""

from xpress_exp.objective.cotrain import CoTrainObjective
from xpress_exp.objective.schedule import WeightSchedule
from xpress_exp.objective.term import cross_entropy, l1_distance
from xpress_exp.objective.vocab_chunk import chunked_loss

__all__ = ["CoTrainObjective", "WeightSchedule", "chunked_loss", "cross_entropy", "l1_distance"]
