#!/bin/bash
# Dumps each database into a new folder of $1, named by the time in UTC, and keeps the newest 7 of these folders.
set -euo pipefail

folder=$1/$(date --utc +%Y-%m-%dT%H-%M-%SZ)
mkdir --parents "$folder.part"
for owned in mlflow:mlflow mlflow:mlflow_auth prefect:prefect; do
  role=${owned%:*} database=${owned#*:}
  password=${role^^}_DB_PASSWORD
  PGPASSWORD=${!password} pg_dump --username "$role" --format custom --file "$folder.part/$database.dump" "$database"
done
mv "$folder.part" "$folder"
echo "databases: $folder, $(du --summarize --human-readable "$folder" | cut --fields 1)"
find "$1" -mindepth 1 -maxdepth 1 -name '*Z' | sort | head --lines -7 | xargs --no-run-if-empty rm --recursive
