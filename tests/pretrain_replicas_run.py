"""Trains by the recipe on as many logical CPU devices as asked: a process of its own each time."""

import sys

import tensorflow as tf
from pretraining_records import load_recipe

if __name__ == "__main__":
    replicas, *words = sys.argv[1:]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(int(replicas))]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    sys.argv = ["pretrain.py", *words]
    pretrain = load_recipe()
    pretrain.recipe.run(pretrain.main, pretrain.Args)
