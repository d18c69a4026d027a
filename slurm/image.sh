#!/bin/sh
# Makes an image for containers of the Debian or Ubuntu that it is run in, of which this checkout is a part: Python, MPI,
# TensorFlow, Horovod and hpc_train. Run by container.def; see docs/containers.md.
set -eu
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends ca-certificates g++ make openssh-client python3-dev python3-venv
make setup
rm -rf /var/lib/apt/lists/* "$HOME/.cache"

# What Charliecloud reads, as Apptainer reads container.def.
mkdir -p /ch
echo "PATH=$PWD/.venv/bin:/usr/local/bin:/usr/bin:/bin" >/ch/environment
# Where Charliecloud mounts the node's folders: an image is read-only then. Add those of your site.
mkdir -p /data /gpfs /home /lustre /nfs /project /projects /scratch /work
touch /etc/resolv.conf /etc/hosts
