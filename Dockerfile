# assay without a GPU: the engine runs in the simulator.
#   docker build -t assay . && docker run --rm assay run --case llama
FROM debian:12 AS build
WORKDIR /src
COPY ci/setup.sh ci/
RUN ci/setup.sh --minimal
COPY . .
RUN ci/build.sh release assay assay-sim assay_manual
RUN cpack --config build/release/CPackConfig.cmake -B package

FROM debian:12
COPY --from=build /src/package/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/*.deb && rm -rf /tmp/*.deb /var/lib/apt/lists/*
RUN useradd --create-home assay
USER assay
WORKDIR /home/assay
ENTRYPOINT ["assay"]
CMD ["run"]
