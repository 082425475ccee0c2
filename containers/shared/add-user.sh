#!/bin/sh
# Add an unprivileged user with a fixed number and an empty home. Written into the files and not
# by useradd, which would want another package in every runtime image.
set -eu
name=$1
number=$2

printf '%s:x:%s:%s::/home/%s:/usr/sbin/nologin\n' "$name" "$number" "$number" "$name" >>/etc/passwd
printf '%s:x:%s:\n' "$name" "$number" >>/etc/group
[ ! -e /etc/shadow ] || printf "%s:!*:%s::::::\n" "$name" "$((SOURCE_DATE_EPOCH / 86400))" >>/etc/shadow
[ ! -e /etc/gshadow ] || printf "%s:!::\n" "$name" >>/etc/gshadow
mkdir -p "/home/$name"
chown "$number:$number" "/home/$name"
chmod 0755 "/home/$name"
