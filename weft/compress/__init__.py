"""Model compression. Methods replace parameters of layers (`parametrize`), so they compose and are trained in the compiled step.

parametrize   a parameter of a layer as a function of other tensors
layers        the weights of a network that compression works on
masks         pruned weights: a mask that every optimizer preserves
prune         masks by magnitude, in each layer or in all, at once or gradually
codebooks     shared weights: centroids that are trained, and the index of each weight
share         k-means: which weights share a value
product_quantization  vectors of weights from codebooks
grids         the numbers that a quantized tensor can have; `ranges` chooses them, `observers` collects the statistics of activations
fake_quantize values rounded to a grid in float, with a straight-through gradient; `taps` puts it on inputs and results of layers
folding       batch norm and ReLU become part of the layer before them; `equalize` balances channels and corrects biases
int8          quantization of weights and activations; `residual_streams` balances residual streams, `mixed_precision` finds layers that should stay in float
learned_rounding  weights rounded so that layers reproduce their float outputs
int8_network  the quantized network in int8: `qdq` makes pairs of quantize and dequantize explicit, `int8_rewrite` computes with the integers between them
fixed_point   a radix point for every tensor, emulated in float; `integers` is the same network in integers
weight_only   weights of 8 or 4 bits in groups, for transformers
quantization_report  range, resolution, overflows and signal-to-noise ratio of every quantized tensor
rans, huffman entropy codes of symbols, with native decoders; `frequencies` are the tables of rANS
sensitivity   measures how much each layer can be pruned, and chooses densities accordingly
iterative     prune and retrain in several rounds, with `weft.train.fit`
scheduled_masks masks that change in the compiled training step: gradual and movement pruning, dynamic surgery
distill       a loss from the predictions of a teacher
low_rank      two layers of low rank in place of one
patterns      masks with a pattern: N of M neighbours, blocks
semi_sparse   2:4 weights by their kept values, for sparse tensor cores
snip          masks at initialization, by the gradient of the loss
channels      masks of whole channels, and networks that shrink by them; `channel_labels` follows channels through the graph
replace       replaces tensors and layers of a network
sparse        linear layers that store and multiply only the kept weights; `sparse_format` is their storage format
pack          saved programs with packed weights (weft/packing)
layer_sizes   the report: bits and bytes of each layer after each step

The names in `__init__.pyi` are imported on first use.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
