-- Names are reused, so identity is not a name: each instance has a birth token, which is part of every turn's fence.
ALTER TABLE instances ADD COLUMN birth TEXT NOT NULL DEFAULT '';

UPDATE instances SET birth = lower(hex(randomblob(8)));

-- For the release before, which does not know the column.
CREATE TRIGGER instance_born AFTER INSERT ON instances WHEN NEW.birth = ''
BEGIN
    UPDATE instances SET birth = lower(hex(randomblob(8))) WHERE instance_id = NEW.instance_id;
END;
