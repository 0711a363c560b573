CREATE TABLE payments (id TEXT PRIMARY KEY, customer TEXT, cents BIGINT, total BIGINT);
