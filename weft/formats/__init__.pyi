"""The names of `weft.formats`, each imported when it is first used (see weft/lazy.py)."""

from .number_format import FixedFormat as FixedFormat
from .number_format import FloatFormat as FloatFormat
from .number_format import number_format as number_format
from .rounding import round_to as round_to
from .rounding_layer import RoundTo as RoundTo
from .survey import FormatAccuracy as FormatAccuracy
from .survey import FormatNoise as FormatNoise
from .survey import FormatSurvey as FormatSurvey
from .survey import TensorFit as TensorFit
from .survey import survey as survey
from .table import FormatRow as FormatRow
from .table import FormatTable as FormatTable
from .table import table as table
