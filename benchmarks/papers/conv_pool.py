"""A convolution, ReLU and max-pooling by two, as one convolution of blocks of 2 x 2 pixels."""

from typing import Any

import keras


class ConvPool(keras.layers.Layer):
    """What `Conv2D(filters, side, activation="relu")` and `MaxPooling2D()` compute, in less time.

    Each block of 2 x 2 pixels becomes one pixel with four times the channels.  A kernel that is
    shifted by 0 or 1 pixel down and right, four ways, gives the four values that pooling compares,
    as channels of one convolution.  It multiplies by zeros too, but has channels enough to fill a
    processor's vectors, which 10 or 20 do not; and comparing channels costs less than pooling.

    Args:
        filters: channels of the output.
        side: of the kernel in pixels; odd.
        kernel_initializer: of the kernel (side, side, channels, filters), as of `Conv2D`.
    """

    def __init__(self, filters: int, side: int, kernel_initializer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if side % 2 == 0:
            raise ValueError(f"side: expected an odd number of pixels, received {side}")
        self.filters, self.side, self.kernel_initializer = filters, side, kernel_initializer

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Create the weights.

        Raises:
            ValueError: an image of an odd number of rows or columns.
        """
        if any(size is None or size % 2 for size in shape[1:3]):
            raise ValueError(f"images: expected even numbers of rows and columns, received {shape}")
        self.kernel = self.add_weight(
            shape=(self.side, self.side, shape[-1], self.filters),
            initializer=self.kernel_initializer,
            name="kernel",
        )
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, images: Any) -> Any:
        """Features (B, (H - side + 1) / 2, (W - side + 1) / 2, filters) of images (B, H, W, C)."""
        ops = keras.ops
        blocks = (self.side + 1) // 2
        channels = self.kernel.shape[2]
        shifted = ops.stack(
            [
                ops.pad(self.kernel, [[down, 1 - down], [right, 1 - right], [0, 0], [0, 0]])
                for down in (0, 1)
                for right in (0, 1)
            ],
            axis=3,
        )
        kernel = ops.reshape(shifted, (blocks, 2, blocks, 2, channels, 4 * self.filters))
        kernel = ops.reshape(
            ops.transpose(kernel, (0, 2, 1, 3, 4, 5)), (blocks, blocks, 4 * channels, -1)
        )
        found = ops.conv(ops.space_to_depth(images, 2, data_format="channels_last"), kernel)
        first, second, third, fourth = ops.split(found, 4, axis=-1)
        greatest = ops.maximum(ops.maximum(first, second), ops.maximum(third, fourth))
        return ops.relu(greatest + self.bias)

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Of images of `shape`."""
        rows, columns = ((size - self.side + 1) // 2 for size in shape[1:3] if size is not None)
        return shape[0], rows, columns, self.filters
