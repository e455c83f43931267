#!/bin/bash
# Creates a role and its databases for each server. Runs once, when the data folder is new.
set -euo pipefail

psql --no-psqlrc -v ON_ERROR_STOP=1 -v mlflow_password="$MLFLOW_DB_PASSWORD" -v prefect_password="$PREFECT_DB_PASSWORD" \
  --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE mlflow, mlflow_auth, prefect FROM PUBLIC;
SQL
