#!/bin/sh
# Install every .deb of a folder, with no network, and leave nothing behind that another run of
# the same step would write differently.
set -eu
packages=$1

export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true

# The folder is mounted read-only, is all there is to install from, and is the whole closure:
# apt only decides the order.
apt-get install --yes --no-install-recommends \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null \
    "$packages"/*.deb

# Logs carry times; aux-cache carries inode numbers; the *-old and *- files are what was there
# before, which depends on the steps taken and not on where they lead.
find /var/log /var/cache/apt /var/lib/apt/lists -type f -delete
rm -rf /tmp/* /var/tmp/*
rm -f /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old \
    /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
