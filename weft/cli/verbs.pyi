"""The verbs of the command line, each imported when it is first used (see weft/lazy.py)."""

from ..mesh.connection import report_failure as report_failure
from .cfg import cfg as cfg
from .compare import compare as compare
from .compress import compress as compress
from .convert import convert as convert
from .dataset import dataset as dataset
from .ensemble import ensemble as ensemble
from .evaluate import evaluate as evaluate
from .export import export as export
from .formats import formats as formats
from .generate import generate as generate
from .interpret import interpret as interpret
from .job import job as job
from .launch import launch as launch
from .measure import bench as bench
from .measure import explain as explain
from .models import models as models
from .networks import networks as networks
from .plan import plan as plan
from .predict import predict as predict
from .profile import profile as profile
from .recipes import recipes as recipes
from .remote import run_remote as run_remote
from .runs import runs as runs
from .show import devices as devices
from .show import summary as summary
from .studio import studio as studio
from .sweep import sweep as sweep
from .tpu import tpu as tpu
from .tracebacks import show_bug as show_bug
from .training import resume as resume
from .training import train as train
from .user import user as user
from .weights import weights as weights

eval = evaluate
