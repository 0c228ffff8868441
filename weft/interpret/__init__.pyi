"""The names of `weft.interpret`, each imported when it is first used (see weft/lazy.py)."""

from .embedding import Embedded as Embedded
from .embedding import embedding as embedding
from .embedding import nearest as nearest
from .explainer import Explainer as Explainer
from .explainer import activations as activations
from .explainer import grad_cam as grad_cam
from .explainer import integrated_gradients as integrated_gradients
from .explainer import occlusion as occlusion
from .explainer import saliency as saliency
from .features import visualize as visualize
from .pictures import activation_tiles as activation_tiles
from .pictures import filter_tiles as filter_tiles
from .pictures import overlay as overlay
from .projection import pca as pca
from .projection import tsne as tsne
from .statistics import ChannelResponses as ChannelResponses
from .statistics import LayerSurvey as LayerSurvey
from .statistics import TensorStatistics as TensorStatistics
from .statistics import activation_statistics as activation_statistics
from .statistics import survey as survey
from .statistics import weight_statistics as weight_statistics
