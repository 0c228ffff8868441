-- A database of the studio as its first revision wrote it, made by sqlite3 .dump; tests upgrade it.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE audit_log (
	id INTEGER NOT NULL, 
	time DOUBLE NOT NULL, 
	who VARCHAR(64) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	target VARCHAR(400) DEFAULT '' NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_audit_log PRIMARY KEY (id)
);
INSERT INTO "audit_log" VALUES(1,1700000000.0,'local','add account','anna as admin','');
CREATE TABLE logins (
	id INTEGER NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	user_id INTEGER NOT NULL, 
	created DOUBLE NOT NULL, 
	expires DOUBLE NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_logins PRIMARY KEY (id), 
	CONSTRAINT uq_logins_secret_hash UNIQUE (secret_hash), 
	CONSTRAINT fk_logins_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);
INSERT INTO "logins" VALUES(1,'d7e83e28a04b537e64424546b14caf9b67bad2f28dabce68116e0d372319fa00',1,1700000300.0,4000000000.0,'10.0.0.9');
CREATE TABLE settings (
	name VARCHAR(64) NOT NULL, 
	value JSON NOT NULL, 
	CONSTRAINT pk_settings PRIMARY KEY (name)
);
INSERT INTO "settings" VALUES('stay_days',7);
CREATE TABLE tokens (
	id INTEGER NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	user_id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created DOUBLE NOT NULL, 
	expires DOUBLE, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_secret_hash UNIQUE (secret_hash), 
	CONSTRAINT fk_tokens_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);
INSERT INTO "tokens" VALUES(1,'8c2edc458bc0ba8fb40457505fd84c6a07949609d473defaa2642c7ccdd36593',1,'nightly','viewer',1700000200.0,NULL);
CREATE TABLE users (
	id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	password_hash TEXT NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	disabled BOOLEAN DEFAULT 0 NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_name UNIQUE (name)
);
INSERT INTO "users" VALUES(1,'anna','$argon2id$v=19$m=64,t=1,p=1$5bqOnnB1ufCV62OzIEeBRg$fVOF5onzePaO2jdGybjpS2eQ4TrruyMTMLDoW1SlswU','admin',0,1700000000.0);
INSERT INTO "users" VALUES(2,'ben','$argon2id$v=19$m=64,t=1,p=1$r3+6Mi8q6Q11nMKNZ7I1xA$LwF/fvpXHW9AEvjhOSKltr5d46j8j5zj3PWmnoxlO5Y','member',1,1700000100.5);
CREATE INDEX ix_logins_user_id ON logins (user_id);
CREATE INDEX ix_tokens_user_id ON tokens (user_id);
CREATE INDEX ix_audit_log_time ON audit_log (time);
COMMIT;
