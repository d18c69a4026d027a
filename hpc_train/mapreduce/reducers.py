"""The reducers of `ht.map_reduce`, by their names."""

from __future__ import annotations

from hpc_train.mapreduce.histogram import Histogram
from hpc_train.mapreduce.moments import Mean, MinMax, Moments, Sum
from hpc_train.mapreduce.quantiles import Quantiles
from hpc_train.mapreduce.reducer import Custom, Reducer
from hpc_train.mapreduce.vocabulary import TopK, Vocabulary

__all__ = ["Custom", "Histogram", "Mean", "MinMax", "Moments", "Quantiles", "Reducer", "Sum", "TopK", "Vocabulary"]
