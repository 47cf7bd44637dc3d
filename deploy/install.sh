#!/bin/sh
# Installs the gateway with its locked packages as in the image: sh deploy/install.sh cpu|gpu FOLDER
#
# Run it in the repository with the wanted `python`, which needs pip. FOLDER becomes a virtual
# environment without pip, so that a running container cannot install packages. FOLDER/sbom.cdx.json
# lists what it holds. Every package is a wheel whose hash is checked, because an sdist would run build
# tools without hashes. The tools that build our own wheel and write the list are not installed.
set -eu
target=$1
folder=$2
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

python -m venv --without-pip "$tools"
python -m pip --python "$tools/bin/python" install --quiet --require-hashes --only-binary :all: \
  --requirement requirements/installer.lock
uv="$tools/bin/uv"
"$uv" pip install --quiet --python "$tools/bin/python" --require-hashes --only-binary :all: \
  --requirement requirements/build.lock --requirement requirements/sbom.lock
"$tools/bin/python" -m hatchling build --target wheel --directory "$tools/dist"

python -m venv --without-pip "$folder"
"$uv" pip install --quiet --python "$folder/bin/python" --require-hashes --only-binary :all: \
  --requirement "requirements/$target.lock"
# By its name: the list would otherwise have the path of the temporary directory.
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps --no-index \
  --find-links "$tools/dist" switchcraft-router
"$tools/bin/python" -m cyclonedx_py environment --output-reproducible \
  --output-file "$folder/sbom.cdx.json" "$folder/bin/python"
