"""Interaction logs, training and evaluation of models over Semantic IDs. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.train.checkpoint import Checkpoint
    from leafbeam.train.evaluation import EvaluationConfig, EvaluationSet, Part, evaluate
    from leafbeam.train.histories import Histories
    from leafbeam.train.interaction_log import InteractionLog, load_log, log_from_tables
    from leafbeam.train.log_rules import Columns, LogReport, LogRules
    from leafbeam.train.metrics import Ranking, RankingMetrics
    from leafbeam.train.parallel import DataParallel
    from leafbeam.train.public_logs import load_amazon, load_movielens
    from leafbeam.train.recipe import Architecture, Budget, PresetName, Recipe, preset
    from leafbeam.train.report import EvaluationReport
    from leafbeam.train.run import TrainOptions, codes_of_log, train
    from leafbeam.train.split import Split, cut_in_time, leave_one_out
    from leafbeam.train.trainer import Trainer, TrainStats

__all__ = [
    "Architecture",
    "Budget",
    "Checkpoint",
    "Columns",
    "DataParallel",
    "EvaluationConfig",
    "EvaluationReport",
    "EvaluationSet",
    "Histories",
    "InteractionLog",
    "LogReport",
    "LogRules",
    "Part",
    "PresetName",
    "Ranking",
    "RankingMetrics",
    "Recipe",
    "Split",
    "TrainOptions",
    "TrainStats",
    "Trainer",
    "codes_of_log",
    "cut_in_time",
    "evaluate",
    "leave_one_out",
    "load_amazon",
    "load_log",
    "load_movielens",
    "log_from_tables",
    "preset",
    "train",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
