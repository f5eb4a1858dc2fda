r"""Does pretraining learn what a plain torch loop over Hugging Face's model learns?

Both start from the same weights (ours, converted by `keras_bert.save(format="huggingface")`) and
see the same batches, without dropout. The other side is `transformers.BertForPreTraining`,
`torch.optim.AdamW` with no decay on biases and layer norms, and `clip_grad_norm_`.

    pip install transformers torch
    python benchmarks/pretraining_reference.py --data data/union64

Measured on a CPU with TensorFlow 2.21, torch 2.13 and transformers 5.24, on the State of the
Union messages in examples of 64 tokens, vocabulary 3,581, `--size tiny`: over 200 updates the
losses differ by at most 6.9e-6 of their value (at update 166) and by 5.0e-7 on average.

    update     ours       theirs
         1     8.846375   8.846375
       101     6.868578   6.868583
       200     7.478954   7.478957
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import keras
import numpy as np
import torch
import transformers

import keras_bert
from keras_bert.training import AdamW, WarmupLinear

PEAK, WARMUP, DECAY, CLIP = 1e-3, 20, 0.01, 1.0


def ours(model, batches, rate):
    """The loss of each update of `keras_bert.training.Model`."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = AdamW(rate, weight_decay=DECAY)
    model.compile(optimizer, {"masked_lm": loss, "next_sentence": loss})
    losses = []
    for batch in batches:
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*batch, return_dict=True)["loss"]))
    return losses


def theirs(folder, batches, rate):
    """The loss of each update of the torch loop."""
    model = transformers.BertForPreTraining.from_pretrained(folder).train()
    plain = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    ids = {id(p) for p in plain}
    groups = [
        {"params": plain, "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": DECAY},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6)
    losses = []
    for update, (inputs, labels, weights) in enumerate(batches):
        masked = np.full_like(inputs["token_ids"], -100)  # the label that their loss leaves out
        row, slot = np.nonzero(weights["masked_lm"])
        masked[row, inputs["mask_positions"][row, slot]] = labels["masked_lm"][row, slot]
        loss = model(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
            labels=torch.tensor(masked).long(),
            next_sentence_label=torch.tensor(labels["next_sentence"]).long(),
        ).loss
        for group in optimizer.param_groups:
            group["lr"] = float(rate(update))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of create_pretraining_data.py")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    tokenizer = keras_bert.WordPiece(f"{args.data}/vocab.txt")
    config = keras_bert.BertConfig.of_size(
        args.size,
        vocabulary_size=tokenizer.vocabulary_size,
        dropout=0.0,
        attention_dropout=0.0,
    )
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.pretraining(encoder)
    batches = keras_bert.data.pretraining(args.data, args.batch_size, seed=0).take(args.updates)
    batches = [
        tuple({name: np.asarray(x) for name, x in part.items()} for part in batch)
        for batch in batches
    ]
    rate = WarmupLinear(PEAK, WARMUP, args.updates)
    with tempfile.TemporaryDirectory() as folder:
        preset = keras_bert.Preset(config, encoder, tokenizer, model)
        keras_bert.save(preset, f"{folder}/bert", format="huggingface")
        started = time.perf_counter()
        a = np.array(ours(model, batches, rate))
        middle = time.perf_counter()
        b = np.array(theirs(f"{folder}/bert", batches, rate))
        ended = time.perf_counter()
    apart = np.abs(a - b) / b
    print(
        json.dumps(
            {
                "backend": keras.backend.backend(),
                "losses": {str(i): [a[i], b[i]] for i in (0, args.updates // 2, args.updates - 1)},
                "largest_relative_difference": apart.max(),
                "at_update": int(apart.argmax()) + 1,
                "mean_relative_difference": apart.mean(),
                "seconds": [round(middle - started, 1), round(ended - middle, 1)],
            }
        )
    )


if __name__ == "__main__":
    main()
