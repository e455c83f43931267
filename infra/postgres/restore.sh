#!/bin/bash
# Replaces each database by its dump in the newest folder of $1, or in the one that BACKUP names. A database is replaced
# whole or not at all.
set -euo pipefail

folder=$1/${BACKUP:-$(find "$1" -mindepth 1 -maxdepth 1 -name '*Z' -printf '%f\n' | sort | tail --lines 1)}
if [ ! -f "$folder/prefect.dump" ]; then
  echo "there is no backup ${BACKUP:-}in $1. It has: $(ls "$1" 2> /dev/null | tr '\n' ' ')" >&2
  echo "Choose one: docker compose -f infra/compose.yaml run --rm -e BACKUP=… restore" >&2
  exit 2
fi

as() {
  local password=${1^^}_DB_PASSWORD
  PGPASSWORD=${!password} "${@:2}" --username "$1"
}

query() {
  as "$1" psql --no-psqlrc --quiet --tuples-only --no-align --dbname "$2" --command "$3"
}

databases=(mlflow:mlflow mlflow:mlflow_auth prefect:prefect)
for owned in "${databases[@]}"; do
  # Read whole before anything changes: psql would commit what a damaged dump has before its fault.
  if ! pg_restore --file /dev/null "$folder/${owned#*:}.dump"; then
    echo "$folder/${owned#*:}.dump is damaged, and nothing was changed. Choose another backup:" >&2
    echo "docker compose -f infra/compose.yaml run --rm -e BACKUP=… restore" >&2
    exit 4
  fi
  others="SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
  if [ "$(query "${owned%:*}" "${owned#*:}" "$others")" != 0 ]; then
    echo "${owned#*:} is in use, and nothing was changed. Stop what uses it, then try again:" >&2
    echo "docker compose -f infra/compose.yaml stop serving worker prefect mlflow" >&2
    exit 3
  fi
done
for owned in "${databases[@]}"; do
  # The whole schema goes, because a newer version may have made tables that the dump does not know.
  { echo 'DROP SCHEMA public CASCADE; CREATE SCHEMA public;'; pg_restore --no-owner --file - "$folder/${owned#*:}.dump"; } \
    | as "${owned%:*}" psql --no-psqlrc --quiet --single-transaction -v ON_ERROR_STOP=1 --output /dev/null \
      --dbname "${owned#*:}"
done
echo "databases: as of $(basename "$folder")"
