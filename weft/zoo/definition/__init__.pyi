"""The names of `weft.zoo.definition`, each imported when it is first used (see weft/lazy.py)."""

from .convert import NotExpressible as NotExpressible
from .convert import network_as_text as network_as_text
from .convert import zoo_network_as_text as zoo_network_as_text
from .costs import NetworkCosts as NetworkCosts
from .costs import network_costs as network_costs
from .network import network_from_text as network_from_text
from .parse import Definition as Definition
from .parse import parse_network as parse_network
from .picture import NetworkPicture as NetworkPicture
from .picture import feature_profile as feature_profile
from .picture import network_picture as network_picture
from .picture import profile_svg as profile_svg
from .plan import NetworkPlan as NetworkPlan
from .plan import plan_network as plan_network
from .problems import DefinitionError as DefinitionError
from .problems import Fix as Fix
from .problems import Place as Place
from .problems import TextProblem as TextProblem
from .schema import layer_specs as layer_specs
