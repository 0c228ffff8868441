"""Optimizers, learning-rate schedules and gradient clipping.

An optimizer is created for the parameters of a module:

    optimizer = optim.adam(model, rate=optim.schedules.cosine(1e-3, steps=10_000), clip_norm=1.0)
"""

from . import schedules as schedules
from .adagrad import adadelta as adadelta
from .adagrad import adagrad as adagrad
from .adagrad import ftrl as ftrl
from .adagrad import rmsprop as rmsprop
from .adagrad import sm3 as sm3
from .adaptive import adabelief as adabelief
from .adaptive import adam as adam
from .adaptive import adamax as adamax
from .adaptive import adamw as adamw
from .adaptive import adan as adan
from .adaptive import nadam as nadam
from .adaptive import radam as radam
from .adaptive import yogi as yogi
from .clip import clip_norm as clip_norm
from .clip import clip_value as clip_value
from .clip import norm as norm
from .constructors import OPTIMIZERS as OPTIMIZERS
from .constructors import find as find
from .constructors import optimizer as optimizer
from .constructors import settings_of as settings_of
from .large_batch import adafactor as adafactor
from .large_batch import lamb as lamb
from .large_batch import lars as lars
from .large_batch import muon as muon
from .large_batch import novograd as novograd
from .momentum import lion as lion
from .momentum import rprop as rprop
from .momentum import sgd as sgd
from .momentum import signum as signum
from .optimizer import Optimizer as Optimizer
from .plateau import ReduceOnPlateau as ReduceOnPlateau
from .schedules import SCHEDULES as SCHEDULES
from .schedules import Schedule as Schedule
from .transform import State as State
from .transform import Transform as Transform
