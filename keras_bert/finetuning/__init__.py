"""What fine-tuning recipes share: one run, several seeds, the paper's search, and their files.

A recipe says in a `Task` how its model is built, fed and judged; `finetune` makes the runs,
`settled` gives the best one's preset as later processes load it, and `write_predictions` and
`write_run_report` leave what was found. `args` is the recipe's own dataclass, made from `Args`.
"""

from keras_bert.finetuning.best_epoch import BestEpoch
from keras_bert.finetuning.encoders import keep_head, start_encoder
from keras_bert.finetuning.files import write_predictions, write_run_report
from keras_bert.finetuning.flags import (
    SMOKE_EXAMPLES,
    Args,
    check_lengths,
    needs_one_shape,
    set_up,
    start_run,
)
from keras_bert.finetuning.runs import Run, Task, finetune, rounded, settled

__all__ = [
    "SMOKE_EXAMPLES",
    "Args",
    "BestEpoch",
    "Run",
    "Task",
    "check_lengths",
    "finetune",
    "keep_head",
    "needs_one_shape",
    "rounded",
    "set_up",
    "settled",
    "start_encoder",
    "start_run",
    "write_predictions",
    "write_run_report",
]
