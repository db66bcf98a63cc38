import numpy as np
import sparsemla as sm

rows = np.zeros((2, 512), np.float32)
rows[0, 0] = rows[1, 1] = 1  # key 0 lies along dim 0, key 1 along dim 1
q = np.zeros((1, 1, 512), np.float32)
q[0, 0, 0] = 16  # the query lies along dim 0
slots = np.array([[0, 1, -1]], np.int32)  # what it attends to; -1 is skipped
o = np.empty_like(q)

sm.ops.sparse_attention(q=q, o=o, scopes=[{"cache": sm.Cache(rows, "f32", block_size=1), "indices": slots}])
print("o = {:.3f} {:.3f} {:.3f} ...".format(*o[0, 0, :3]))
# o = 0.670 0.330 0.000 ...
