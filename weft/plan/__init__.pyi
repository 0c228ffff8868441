"""The names of `weft.plan`, each imported when it is first used (see weft/lazy.py)."""

from .calibration import MeasuredCluster as MeasuredCluster
from .calibration import here as here
from .calibration import measure as measure
from .clusters import DescribedCluster as DescribedCluster
from .clusters import PublishedScaling as PublishedScaling
from .clusters import cluster as cluster
from .clusters import clusters as clusters
from .clusters import published_scaling as published_scaling
from .collectives import AlphaBeta as AlphaBeta
from .collectives import CollectiveCost as CollectiveCost
from .collectives import NodeLinks as NodeLinks
from .collectives import RankGroup as RankGroup
from .published import ScalingCheck as ScalingCheck
from .published import published_checks as published_checks
from .rank_measures import RankMeasures as RankMeasures
from .rank_memory import RankMemory as RankMemory
from .scaling_plan import ScalingPlan as ScalingPlan
from .scaling_plan import scaling_plan as scaling_plan
from .scaling_plot import scaling_svg as scaling_svg
from .splits import ParallelSplit as ParallelSplit
from .step_time import StepPrediction as StepPrediction
from .step_time import predict as predict
from .step_work import LayerWork as LayerWork
from .step_work import StepWork as StepWork
from .step_work import measured_work as measured_work
from .summary_work import summary_work as summary_work
