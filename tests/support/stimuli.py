"""What the models are fed: inputs like those they were made for, the same on every machine.

Random input drives many of them into a corner (a wake word stays at 0), where a comparison proves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from support import oracles, zoo
from support.oracles import Array, Feeds

DATA = Path(__file__).resolve().parents[1] / "data"
RATE = 16000
STEPS = 12  # inferences of a streaming model
IMAGES = 4

Shape = tuple[int, ...]
# A generator yields the model's main input; the state inputs and constants are added around it.
Generator = Callable[[str, Shape, np.random.Generator], Iterator[Array]]


def stimuli(key: str) -> list[Feeds]:
    """The inferences of one model, in order: all inputs of each, by name.

    State that travels through inputs and outputs starts at zero and is carried as the reference computes it,
    so that every step can be compared on its own. Raises `zoo.Unavailable` like `oracles.reference`.
    """
    model = zoo.MODELS[key]
    oracle = oracles.reference(model)
    random = np.random.default_rng(zlib.crc32(key.encode()))
    fixed: Feeds = {
        name: np.array(value, oracle.inputs[name][1]).reshape(oracle.inputs[name][0])
        for name, value in model.constants.items()
    }
    state = {name: np.zeros(*oracle.inputs[name]) for name in model.state}
    if model.stimulus == "tokens":
        return list(_tokens(oracle.inputs, random))
    (main,) = (name for name in oracle.inputs if name not in fixed and name not in state)
    shape, dtype = oracle.inputs[main]
    feeds = []
    for value in GENERATORS[model.stimulus](key, shape, random):
        feed = {main: np.ascontiguousarray(value, dtype).reshape(shape), **state, **fixed}
        feeds.append(feed)
        if state:
            outputs = oracle.run(feed)
            state = {name: outputs[source] for name, source in model.state.items()}
    return feeds


def _wake_word(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """The model's own phrase, spoken by a synthesiser, as features: a few frames a step."""
    frames = np.load(DATA / f"{key}_in_int8.npy")
    count = len(frames) // shape[1]
    yield from frames[: count * shape[1]].reshape(count, *shape)


def _image(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Pictures in 0..1, or in 0..255 where the model takes bytes."""
    full = 255.0 if zoo.MODELS[key].numerics == "int8" else 1.0
    for picture in _pictures(shape, random):
        yield picture * full


def _signed_image(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    for picture in _pictures(shape, random):
        yield picture * 2 - 1


def _pictures(shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Coloured gradients with discs and boxes in them, and a little noise; channels as the shape has them."""
    channels_last = shape[-1] == 3
    height, width = shape[1:3] if channels_last else shape[2:]
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    for _ in range(IMAGES):
        slope = random.uniform(-0.5, 0.5, (2, 3))
        picture = 0.5 + (y[..., None] - 0.5) * slope[0] + (x[..., None] - 0.5) * slope[1]
        for _ in range(6):
            cy, cx, radius = random.uniform(0.1, 0.9), random.uniform(0.1, 0.9), random.uniform(0.05, 0.3)
            distance = np.hypot(y - cy, x - cx) if random.random() < 0.5 else np.maximum(abs(y - cy), abs(x - cx))
            # A soft edge of about two pixels: real pictures have no perfect steps.
            cover = np.clip((radius - distance) * height / 2 + 0.5, 0, 1)[..., None]
            picture = picture * (1 - cover) + random.uniform(0, 1, 3) * cover
        picture = np.clip(picture + random.normal(0, 0.02, picture.shape), 0, 1)
        yield picture if channels_last else picture.transpose(2, 0, 1)


def _text_image(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Rows of dark strokes on a light ground, as letters look to a text model, in -1..1, channels first."""
    _, channels, height, width = shape
    y, x = np.mgrid[0:height, 0:width]
    for _ in range(IMAGES):
        picture = np.full((height, width), random.uniform(0.6, 0.95)) - 0.1 * x / width
        for top in range(0, height - 40, 64) if height > 64 else [4]:
            left = 8.0
            while left < width - 32:
                size = random.uniform(20, 32)
                for _ in range(3):
                    a, b = random.uniform(0, size, 2), random.uniform(0, size, 2)
                    along = np.clip(
                        ((y - top - a[0]) * (b[0] - a[0]) + (x - left - a[1]) * (b[1] - a[1]))
                        / max(float(np.sum((b - a) ** 2)), 1e-6),
                        0,
                        1,
                    )
                    far = np.hypot(y - top - a[0] - along * (b[0] - a[0]), x - left - a[1] - along * (b[1] - a[1]))
                    picture -= 0.7 * np.clip(2.2 - far, 0, 1) * (picture > 0.3)
                left += size + random.uniform(2, 8)
        picture = picture + random.normal(0, 0.01, picture.shape)
        yield np.repeat(np.clip(picture, 0, 1)[None], channels, 0) * 2 - 1


def _noisy_spectrum(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Magnitudes of overlapping windows of noisy speech."""
    for frame in _noisy_frames(2 * (shape[-1] - 1), random):
        yield np.abs(np.fft.rfft(frame))


def _noisy_frame(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    yield from _noisy_frames(shape[-1], random)


def _noisy_frames(size: int, random: np.random.Generator) -> Iterator[Array]:
    hop = size // 4
    signal = _speech(size + hop * STEPS, RATE, random)
    signal = signal + random.normal(0, 0.02, signal.shape)
    for step in range(STEPS):
        yield signal[step * hop : step * hop + size]


def _speech_window(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Consecutive windows of speech, each preceded by the last samples of the one before."""
    count, size = shape
    context = 64
    hop = size - context
    signal = _speech(context + hop * count * STEPS, RATE, random)
    windows = np.stack([signal[i * hop : i * hop + size] for i in range(count * STEPS)])
    yield from windows.reshape(STEPS, count, size)


def _log_power(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Logarithmic power spectra of noisy speech, one row per window of 20 ms."""
    _, frames, bins = shape
    size = 2 * (bins - 1)
    rate = RATE if bins < 512 else 3 * RATE
    for _ in range(3):
        signal = _speech(size + size // 2 * frames, rate, random)
        signal = signal + random.normal(0, 0.01, signal.shape)
        windows = np.stack([signal[i * size // 2 : i * size // 2 + size] for i in range(frames)])
        power = np.abs(np.fft.rfft(windows * np.hanning(size))) ** 2
        yield np.log10(np.maximum(power, 1e-12))


def _mfcc(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """Cepstral coefficients of windows of 100 ms every 50 ms; the first of each row is the loudness."""
    _, frames, coefficients = shape
    window, hop, bands = RATE // 10, RATE // 20, 20
    cosines = np.cos(np.pi / bands * (np.arange(bands) + 0.5) * np.arange(coefficients)[:, None])
    for loudness in np.geomspace(0.01, 1, STEPS):
        signal = loudness * _speech(window + hop * frames, RATE, random)
        signal = signal + random.normal(0, 0.001, signal.shape)
        mel = _log_mel(signal, frames, window, hop, bands)
        rows = mel @ cosines.T * np.sqrt(2 / bands)
        rows[:, 0] = np.log(np.exp(mel).sum(1))
        yield rows


def _keyword_features(key: str, shape: Shape, random: np.random.Generator) -> Iterator[Array]:
    """A second with one short word in it, as 49 windows of 40 log-mel bands."""
    frames, window, hop = 49, 480, 320
    t = np.linspace(0, 1, window + hop * frames)
    for _ in range(20):
        word = _speech(t.size, RATE, random) * np.exp(-(((t - random.uniform(0.35, 0.65)) / 0.18) ** 4))
        mel = _log_mel(word + random.normal(0, 0.002, t.size), frames, window, hop, shape[1] // frames)
        # At this level the answers spread over the keywords; much lower, and all is silence to the model.
        yield np.clip((mel - mel.mean()) / mel.std() * 2 + 2, -5, 5)


def _log_mel(signal: Array, frames: int, window: int, hop: int, bands: int) -> Array:
    """Logarithms of the energy in triangular bands on the mel scale, [frames, bands]."""
    size = 1 << (window - 1).bit_length()
    windows = np.stack([signal[i * hop : i * hop + window] for i in range(frames)]) * np.hanning(window)
    power = np.abs(np.fft.rfft(windows, size)) ** 2 / size
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hertz = np.fft.rfftfreq(size, 1 / RATE)
    rise = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    energy: Array = power @ np.clip(np.minimum(rise, fall), 0, None).T
    return np.log(energy + 1e-9)


def _speech(samples: int, rate: int, random: np.random.Generator) -> Array:
    """A voice-like signal in -1..1: harmonics of a gliding pitch, shaped by formants, in syllables."""
    t = np.arange(samples) / rate
    pitch = random.uniform(100, 220) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(0.5, 2) * t))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formants = random.uniform((300, 900, 2200), (800, 2200, 3200))
    signal: Array = np.zeros(samples)
    for harmonic in range(1, 30):
        hertz = harmonic * pitch.mean()
        gain = sum(np.exp(-(((hertz - f) / 250) ** 2)) for f in formants) + 0.02
        signal += gain / harmonic**0.5 * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * random.uniform(3, 5) * t + random.uniform(0, 6)) + 0.4, 0, None)
    signal = signal * syllables
    return signal * (0.5 / max(float(np.abs(signal).max()), 1e-9))


def _tokens(inputs: oracles.Specs, random: np.random.Generator) -> Iterator[Feeds]:
    """Sentences of several lengths in WordPiece numbers: [CLS] words [SEP], then masked padding."""
    cls, sep, first_word, words = 101, 102, 1996, 20000
    ((_, length), dtype) = inputs["input_ids"]
    for used in (length, length // 2, 7, 3):
        ids = np.zeros((1, length), dtype)
        ids[0, :used] = [cls, *random.integers(first_word, words, used - 2), sep]
        mask = np.zeros((1, length), dtype)
        mask[0, :used] = 1
        yield {"input_ids": ids, "attention_mask": mask}


GENERATORS: dict[str, Generator] = {
    "wake_word": _wake_word,
    "image": _image,
    "signed_image": _signed_image,
    "text_image": _text_image,
    "noisy_spectrum": _noisy_spectrum,
    "noisy_frame": _noisy_frame,
    "speech_window": _speech_window,
    "log_power": _log_power,
    "mfcc": _mfcc,
    "keyword_features": _keyword_features,
}
