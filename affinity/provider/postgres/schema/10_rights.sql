-- Roles that `affinity migrate` was asked to give rights to, so that it gives them rights to later objects too. The rights
-- themselves are one table in affinity/provider/postgres/rights.py.
CREATE TABLE granted_roles (
    role text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('client', 'worker', 'scaler', 'reader'))
);
