"""A convolutional net in Keras 3 on jax: Model.fit."""

import hashlib
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

keras.utils.set_random_seed(0)
inputs = keras.Input((32, 32, 3))
x = keras.layers.Conv2D(16, 3, padding="same")(inputs)
for _ in range(3):
  branches = [
    keras.layers.Conv2D(16, size, padding="same", activation="relu")(x)
    for size in (1, 3, 5)
  ]
  joined = keras.layers.Concatenate()(branches)
  x = keras.layers.Add()([x, keras.layers.Conv2D(16, 1)(joined)])
x = keras.layers.GlobalAveragePooling2D()(x)
model = keras.Model(inputs, keras.layers.Dense(10)(x))
model.compile(
  optimizer=keras.optimizers.Adam(1e-3),
  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)

rng = np.random.default_rng(0)
images = rng.standard_normal((48, 32, 32, 3)).astype(np.float32)
classes = rng.integers(0, 10, 48)
model.fit(images, classes, batch_size=16, epochs=1, shuffle=False, verbose=2)
weights = [np.ascontiguousarray(w) for w in model.get_weights()]
print(hashlib.sha256(b"".join(weights)).hexdigest())
