"""The names of `weft.formats`, each imported when it is first used (see weft/lazy.py)."""

from .accuracy import FormatAccuracy as FormatAccuracy
from .number_format import FixedFormat as FixedFormat
from .number_format import FloatFormat as FloatFormat
from .number_format import number_format as number_format
from .rounding import round_to as round_to
from .rounding_layer import RoundTo as RoundTo
from .survey import FormatSurvey as FormatSurvey
from .survey import survey as survey
from .table import FormatRow as FormatRow
from .table import FormatTable as FormatTable
from .table import table as table
from .tensor_fit import FormatNoise as FormatNoise
from .tensor_fit import TensorFit as TensorFit
