"""`ht.parallel`: layers of which ranks hold parts. Keras can load files with them once this is imported."""

from hpc_train.parallel.attention import MultiHeadAttention
from hpc_train.parallel.dense import ColumnDense, RowDense
from hpc_train.parallel.dropout import Dropout
from hpc_train.parallel.embedding import Embedding
from hpc_train.parallel.sharded_embedding import ShardedEmbedding

__all__ = ["ColumnDense", "Dropout", "Embedding", "MultiHeadAttention", "RowDense", "ShardedEmbedding"]
