# The wheel of `make wheel` in an image without a compiler; a container of it runs the demo:
#   docker build --tag isthmus . && docker run --rm isthmus
# Other commands, with the models of a folder:  docker run --rm --volume "$PWD:/models" isthmus isthmus plan /models/M.onnx
FROM python:3.12-slim
WORKDIR /isthmus
COPY dist/ dist/
RUN set -- dist/isthmus-*_$(uname -m).whl; \
    test $# = 1 -a -f "$1" || { echo "dist must have one wheel for $(uname -m), it has: $*" >&2; exit 1; }; \
    pip install --no-cache-dir "$1[onnx,rich]" pymicro-wakeword==2.5.0 && rm -r dist
COPY examples/ examples/
RUN useradd --create-home isthmus
USER isthmus
CMD python examples/lpai_wake_word.py && echo && python examples/wake_word.py
