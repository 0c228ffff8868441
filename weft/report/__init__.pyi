"""The names of `weft.report`, each imported when it is first used (see weft/lazy.py)."""

from .charts import bars as bars
from .charts import curves as curves
from .charts import learning_rate as learning_rate
from .compare import comparison as comparison
from .confusion_matrix import confusion as confusion
from .gallery import gallery as gallery
from .page import report as report
from .pipeline_plot import pipeline_svg as pipeline_svg
from .png import png as png
from .run_charts import plots as plots
